"""Writes a network of ours as the paper's authors saved theirs: Keras 2's HDF5, layer by layer."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from quatserve.training.networks.residual import Components, Network, ProjectionBlock
from quatserve.training.nn.norm import HypercomplexBatchNorm2d

Array = NDArray[np.float32]


class KerasWriter:
    """Collects layers under the names that Keras gives them: kind_1, kind_2, ... in order of building."""

    def __init__(self, *, epsilon: float):
        self.epsilon = epsilon
        self.layers: dict[str, dict[str, Array]] = {}
        self.counts: dict[str, int] = {}

    def add(self, kind: str, **weights: Array) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.layers[f"{kind}_{self.counts[kind]}"] = weights

    def write(self, path: Path, *, height: int, width: int, order: list[str] | None = None) -> None:
        names = order or list(self.layers)
        configs: list[dict[str, Any]] = [
            {"name": "input_1", "config": {"name": "input_1", "batch_input_shape": [None, 3, height, width]}},
            {"name": "activation_1", "config": {"name": "activation_1"}},
            *({"name": name, "config": {"name": name, "epsilon": self.epsilon}} for name in names),
        ]
        with h5py.File(path, "w") as file:
            file.attrs["model_config"] = json.dumps({"config": {"layers": configs}}).encode()
            group = file.create_group("model_weights")
            group.attrs["keras_version"] = b"2.1.2"
            group.attrs["layer_names"] = [name.encode() for name in ("activation_1", *names)]
            group.create_group("activation_1").attrs["weight_names"] = np.array([], "S1")
            for name in names:
                self._write_layer(group.create_group(name), name)

    def _write_layer(self, group: h5py.Group, name: str) -> None:
        weights = self.layers[name]
        group.attrs["weight_names"] = [f"{name}/{weight}:0".encode() for weight in weights]
        for weight, value in weights.items():
            group.create_dataset(f"{name}/{weight}:0", data=value)


def keras_layers(network: Network, *, epsilon: float = 1e-4) -> KerasWriter:
    """The layers of a network with whiten=False, numbered as the authors' code builds them."""
    writer, kind = KerasWriter(epsilon=epsilon), network.config.algebra
    components = network.components
    assert isinstance(components, Components)
    for block in range(components.blocks):
        part = slice(3 * block, 3 * block + 3)
        for norm, convolution in ((components.norm1, components.conv1), (components.norm2, components.conv2)):
            writer.add("batch_normalization", **_plain_norm(norm, part, epsilon))
            writer.add("conv2d", kernel=_hwio(convolution.weight[part]))
    writer.add(f"{kind}_conv2d", kernel=_hwio(network.stem.weight))
    writer.add(f"{kind}_batch_normalization", **_norm(network.norm))
    for block_ in network.blocks:
        for number in ("1", "2"):
            writer.add(f"{kind}_batch_normalization", **_norm(block_.get_submodule(f"norm{number}")))
            weight = block_.get_parameter(f"conv{number}.weight")
            writer.add(f"{kind}_conv2d", kernel=_hwio(weight))
        if isinstance(block_, ProjectionBlock):
            writer.add(f"{kind}_conv2d", kernel=_hwio(block_.shortcut.weight))
    head = network.head[0]
    writer.add("conv2d", kernel=_hwio(head.weight), bias=_array(head.bias))
    return writer


def _hwio(weight: Any) -> Array:
    return np.ascontiguousarray(_array(weight).transpose(2, 3, 1, 0))


def _norm(norm: Any) -> dict[str, Array]:
    return {"beta": _array(norm.beta).reshape(-1), "moving_mean": _array(norm.running_mean).reshape(-1)}


def _plain_norm(norm: HypercomplexBatchNorm2d, part: slice, epsilon: float) -> dict[str, Array]:
    """A variance that Keras, adding `epsilon`, divides by as we do, adding ours."""
    variance = _array(norm.running_covariance)[part, 0, 0] + np.float32(norm.eps - epsilon)
    return {
        "beta": _array(norm.beta)[0, part],
        "moving_mean": _array(norm.running_mean)[0, part],
        "moving_variance": variance,
    }


def _array(tensor: Any) -> Array:
    array: Array = tensor.detach().numpy()
    return array

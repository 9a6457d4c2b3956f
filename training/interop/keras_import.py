"""The road networks that the paper's authors published, as networks of ours.

Kernels are stored (height, width, in, out) with components in blocks [r | i | j | k] along out. In the order
in which a file numbers them, its layers are

    batch_normalization, conv2d    two a learned block, block by block; the last conv2d is the head
    ALGEBRA_conv2d                 the stem, then two a block; a projection block has a 1x1 shortcut besides
    ALGEBRA_batch_normalization    the stem's, then two a block

All were trained with scale=False, which is our `whiten=False`.
"""

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from quatserve.training.errors import UserError
from quatserve.training.interop.keras_file import KerasModel, Layer, read_keras
from quatserve.training.loop import run as runs
from quatserve.training.loop.checkpoint import write_tensors
from quatserve.training.networks.residual import Network, NetworkConfig, ProjectionBlock
from quatserve.training.nn.algebra import COMPLEX, QUATERNION, Algebra
from quatserve.training.recipes import find_recipe
from quatserve.training.recipes.schema import Recipe, as_json

State = dict[str, Tensor]


def import_keras(path: Path, run: Path) -> Recipe:
    """Read the authors' file into a run directory, like one of `fit` that has ended."""
    model = read_keras(path)
    network = network_of(model)
    recipe = _recipe(network.config, model)
    config = runs.new_config(recipe, seed=0)
    if (run / runs.CONFIG).exists():
        raise UserError(f"{run} holds a run already: name another --out")
    runs.make_directory(run)
    source = {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    versions = config.versions | {"keras": model.version}
    meaning = {"recipe": as_json(recipe), "seed": 0, "epoch": recipe.epochs}
    write_tensors(run / runs.CHECKPOINT, network.state_dict(), meaning)
    # last: without it the directory holds no run, and the import can be tried again
    runs.write_config(run, dataclasses.replace(config, versions=versions, imported=source))
    return recipe


def network_of(model: KerasModel) -> Network:
    """Our network with the file's weights, in evaluation mode."""
    algebra = _algebra(model)
    depth = (
        len(model.kind(f"{algebra.name}_conv2d")) - 3
    ) // 6  # the stem, two shortcuts, two in each of 3 n
    _expect_counts(model, algebra, depth)
    try:
        width = model.kind(f"{algebra.name}_conv2d")[0].weights["kernel"].shape[-1]
        network = Network(
            NetworkConfig(algebra=algebra.name, task="segmentation", depth=depth, width=width, whiten=False)
        )
        network.load_state_dict(_state(network, model, algebra))
    except (RuntimeError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"the file's layers do not fit the paper's road network: {reason}") from error
    return network.eval()


def _recipe(network: NetworkConfig, model: KerasModel) -> Recipe:
    """How the authors trained it, as far as is known; nothing was held out of the frames we have."""
    return dataclasses.replace(
        find_recipe(f"paper-kitti-road-{network.algebra}"),
        name=f"published-kitti-road-{network.algebra}",
        summary=f"{network.algebra} road network with the weights that the paper's authors published",
        network=network,
        holdout=0,
        height=model.height,
        width=model.width,
    )


def _algebra(model: KerasModel) -> Algebra:
    for algebra in (QUATERNION, COMPLEX):
        if model.kind(f"{algebra.name}_conv2d"):
            return algebra
    raise UserError("the file has no quaternion_conv2d or complex_conv2d: only such networks can be imported")


def _expect_counts(model: KerasModel, algebra: Algebra, depth: int) -> None:
    learned = 2 * (algebra.dimension - 1)
    expected = {
        "batch_normalization": learned,
        "conv2d": learned + 1,
        f"{algebra.name}_conv2d": 3 + 6 * depth,
        f"{algebra.name}_batch_normalization": 1 + 6 * depth,
    }
    for kind, count in expected.items():
        if depth < 1 or len(model.kind(kind)) != count:
            raise UserError(
                f"the file has {len(model.kind(kind))} layers {kind} where {count} are expected: "
                "it is not a road network of the paper"
            )


def _state(network: Network, model: KerasModel, algebra: Algebra) -> State:
    convolutions = iter(model.kind(f"{algebra.name}_conv2d"))
    norms = iter(model.kind(f"{algebra.name}_batch_normalization"))
    state = _learned_components(model, network.norm.eps)
    state |= {"stem.weight": _kernel(next(convolutions)), **_centring("norm", next(norms), algebra)}
    for i, block in enumerate(network.blocks):
        own = [_kernel(next(convolutions)) for _ in range(3 if isinstance(block, ProjectionBlock) else 2)]
        own.sort(
            key=lambda kernel: kernel.shape[-1], reverse=True
        )  # the 1x1 shortcut last, the others as they are
        for name, kernel in zip(("conv1", "conv2", "shortcut"), own, strict=False):
            state[f"blocks.{i}.{name}.weight"] = kernel
        for name in ("norm1", "norm2"):
            state |= _centring(f"blocks.{i}.{name}", next(norms), algebra)
    head = model.kind("conv2d")[-1]
    return state | {"head.0.weight": _kernel(head), "head.0.bias": head.weights["bias"]}


def _learned_components(model: KerasModel, eps: float) -> State:
    """Layers 1, 3, 5 open the learned blocks and 2, 4, 6 close them; ours run side by side."""
    state: State = {}
    for name, first in (("1", 0), ("2", 1)):
        kernels = [_kernel(layer) for layer in model.kind("conv2d")[:-1][first::2]]
        state[f"components.conv{name}.weight"] = torch.cat(kernels)
        state |= dict(_dividing(f"components.norm{name}", model.kind("batch_normalization")[first::2], eps))
    return state


def _kernel(layer: Layer) -> Tensor:
    """(height, width, in, out) -> (out, in, height, width)."""
    return layer.weights["kernel"].permute(3, 2, 0, 1).contiguous()


def _centring(prefix: str, layer: Layer, algebra: Algebra) -> State:
    """A hypercomplex normalisation without scale: beta and mean, in d blocks."""
    _expect_no_scale(layer)
    names = {"beta": "beta", "running_mean": "moving_mean"}
    return {
        f"{prefix}.{ours}": layer.weights[theirs].reshape(algebra.dimension, -1)
        for ours, theirs in names.items()
    }


def _dividing(prefix: str, layers: list[Layer], eps: float) -> Iterator[tuple[str, Tensor]]:
    """Plain normalisations without scale, side by side; the variance makes up for another epsilon."""
    for layer in layers:
        _expect_no_scale(layer)
    yield f"{prefix}.beta", torch.cat([layer.weights["beta"] for layer in layers])[None]
    yield f"{prefix}.running_mean", torch.cat([layer.weights["moving_mean"] for layer in layers])[None]
    variances = [layer.weights["moving_variance"] + (layer.config["epsilon"] - eps) for layer in layers]
    yield f"{prefix}.running_covariance", torch.cat(variances)[:, None, None]


def _expect_no_scale(layer: Layer) -> None:
    if any(name.startswith("gamma") for name in layer.weights):
        raise UserError(
            f"{layer.config['name']} has a gamma: only networks trained with scale=False are known"
        )

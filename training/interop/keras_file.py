"""Reads an HDF5 file of Keras 2: the weights of its layers, by kind, in the order they were built."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import torch
from torch import Tensor

from quatserve.training.errors import UserError


@dataclass(frozen=True)
class Layer:
    weights: dict[str, Tensor]  # kernel, bias, beta, moving_mean, moving_variance
    config: dict[str, Any]


@dataclass(frozen=True)
class KerasModel:
    layers: dict[str, list[Layer]]  # kind, such as "quaternion_conv2d", -> its layers 1, 2, ...
    height: int
    width: int
    version: str

    def kind(self, name: str) -> list[Layer]:
        return self.layers.get(name, [])


def read_keras(path: Path) -> KerasModel:
    """Every layer that has weights. The network's input is (channels, height, width)."""
    try:
        with h5py.File(path) as file:
            return _model(file)
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} cannot be read as a network that Keras 2 saved: {reason}") from error


def _model(file: h5py.File) -> KerasModel:
    configs = {c["name"]: c["config"] for c in json.loads(file.attrs["model_config"])["config"]["layers"]}
    stored = file["model_weights"]
    layers: dict[str, list[Layer]] = {}
    for name in sorted((name for name in stored if len(stored[name])), key=_number):
        layers.setdefault(name.rpartition("_")[0], []).append(Layer(_weights(stored[name]), configs[name]))
    _, height, width = _input_shape(configs)
    return KerasModel(layers, height, width, _text(stored.attrs["keras_version"]))


def _input_shape(configs: dict[str, dict[str, Any]]) -> tuple[int, int, int]:
    shapes = [config["batch_input_shape"] for config in configs.values() if "batch_input_shape" in config]
    if len(shapes) != 1 or len(shapes[0]) != 4:
        raise ValueError(f"one input of (channels, height, width) is expected, found {shapes}")
    channels, height, width = shapes[0][1:]
    if not all(isinstance(side, int) and side > 0 for side in (channels, height, width)):
        raise ValueError(f"an input of fixed size is expected, found {shapes[0]}")
    return channels, height, width


def _weights(group: h5py.Group) -> dict[str, Tensor]:
    """conv2d_1/kernel:0 -> kernel."""
    names = map(_text, group.attrs["weight_names"])
    return {name.rpartition("/")[2].removesuffix(":0"): torch.from_numpy(group[name][()]) for name in names}


def _number(name: str) -> int:
    return int(name.rpartition("_")[2])


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

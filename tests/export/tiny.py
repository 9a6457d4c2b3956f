"""Small networks with random statistics, and small finished runs with their data."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from quatserve.training.data import cifar
from quatserve.training.loop.checkpoint import write_tensors
from quatserve.training.loop.run import CHECKPOINT, new_config, write_config
from quatserve.training.networks.residual import Network, NetworkConfig
from quatserve.training.nn.norm import HypercomplexBatchNorm2d
from quatserve.training.recipes import find_recipe
from quatserve.training.recipes.cifar import untaught
from quatserve.training.recipes.schema import Recipe, as_json
from tests.training.tiny_data import SMALL_CIFAR, road_recipe, write_cifar, write_frames

NAME = "tiny-model"


def randomised(config: NetworkConfig, seed: int = 0) -> Network:
    """In evaluation mode, every normalisation with random means, covariances, gammas and betas."""
    torch.manual_seed(seed)
    network = Network(config)
    for module in network.modules():
        if isinstance(module, HypercomplexBatchNorm2d):
            _randomise(module)
    return network.eval()


@torch.no_grad()
def _randomise(norm: HypercomplexBatchNorm2d) -> None:
    norm.running_mean.normal_(0, 0.3)
    norm.beta.normal_(0, 0.3)
    if norm.gamma is not None:
        norm.gamma.add_(torch.randn_like(norm.gamma), alpha=0.2)
    if norm.scales:
        channels, d, _ = norm.running_covariance.shape
        factor = torch.randn(channels, d, 4 * d)  # V = F F^T / d is far from singular
        norm.running_covariance.copy_(factor @ factor.mT / d)


def pictures(count: int, height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def classifier_recipe(**changes: object) -> Recipe:
    small = {"network": NetworkConfig(width=8, depth=1), "epochs": 1, "batch_size": 4, "holdout": 0}
    recipe = untaught(find_recipe("cifar10-quaternion"))
    return dataclasses.replace(recipe, **small | changes)  # type: ignore[arg-type]


def write_run(run: Path, recipe: Recipe, seed: int = 0) -> Network:
    """A finished run directory around a randomised network."""
    network = randomised(recipe.paper_network, seed)
    run.mkdir(parents=True)
    write_config(run, new_config(recipe, seed))
    meaning = {"recipe": as_json(recipe), "seed": seed, "epoch": recipe.epochs}
    write_tensors(run / CHECKPOINT, network.state_dict(), meaning)
    return network


def small_cifar(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    """CIFAR-10 in its official layout, with a few records per file."""
    monkeypatch.setitem(cifar.LAYOUTS, "cifar10", SMALL_CIFAR)
    write_cifar(data, SMALL_CIFAR)


@dataclasses.dataclass(frozen=True)
class Place:
    """A finished run, its data, and the path of its artifact."""

    run: Path
    data: Path
    out: Path
    network: Network


def classifier_place(root: Path, monkeypatch: pytest.MonkeyPatch, **changes: object) -> Place:
    small_cifar(monkeypatch, root / "data")
    network = write_run(root / "run", classifier_recipe(**changes))
    return Place(root / "run", root / "data", root / "models" / NAME / "1", network)


def road_place(root: Path, **changes: object) -> Place:
    write_frames(root / "data")
    network = write_run(root / "run", road_recipe(**changes))
    return Place(root / "run", root / "data", root / "models" / NAME / "1", network)

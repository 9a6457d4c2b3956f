"""Data sets and runs in their official layouts, small enough for a test."""

import dataclasses
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from quatserve.training.data.cifar import CIFAR10, CifarLayout
from quatserve.training.loop.checkpoint import write_tensors
from quatserve.training.loop.run import CHECKPOINT, new_config, write_config
from quatserve.training.networks.residual import Network, NetworkConfig
from quatserve.training.recipes import find_recipe
from quatserve.training.recipes.schema import Recipe, as_json

ROAD, BACKGROUND, UNKNOWN = (255, 0, 255), (255, 0, 0), (0, 0, 0)
SMALL_CIFAR = dataclasses.replace(CIFAR10, records_per_file={"train": 3, "test": 4})


def write_frames(data: Path, *, each: int = 3, size: tuple[int, int] = (62, 19), seed: int = 0) -> None:
    """`each` frames of um, umm and uu: noise above, a grey road below, a corner that nobody knows."""
    random = np.random.default_rng(seed)
    folder = data / "data_road" / "training"
    for name in ("image_2", "gt_image_2"):
        (folder / name).mkdir(parents=True)
    width, height = size
    for category in ("um", "umm", "uu"):
        for number in range(each):
            pixels = random.integers(0, 256, (height, width, 3), np.uint8)
            pixels[height // 2 :, width // 4 : -width // 4] = 90 + number
            truth = np.full((height, width, 3), BACKGROUND, np.uint8)
            truth[height // 2 :, width // 4 : -width // 4] = ROAD
            truth[:3, :5] = UNKNOWN
            Image.fromarray(pixels).save(folder / "image_2" / f"{category}_{number:06}.png")
            Image.fromarray(truth).save(folder / "gt_image_2" / f"{category}_road_{number:06}.png")


def write_cifar(data: Path, layout: CifarLayout, *, seed: int = 0) -> None:
    """Every file of the layout with random records, and the names of the classes."""
    random = np.random.default_rng(seed)
    folder = data / layout.folder
    folder.mkdir(parents=True)
    for split, files in (("train", layout.train_files), ("test", layout.test_files)):
        for name in files:
            count = layout.records_per_file[split]
            labels = random.integers(0, layout.classes, (count, layout.label_bytes), np.uint8)
            pixels = random.integers(0, 256, (count, 3072), np.uint8)
            np.concatenate([labels, pixels], 1).tofile(folder / name)
    (folder / layout.names_file).write_text("".join(f"class_{i}\n" for i in range(layout.classes)))


def road_recipe(**changes: object) -> Recipe:
    """The default road recipe, of a size that trains within a second."""
    small = {
        "network": small_road_network(),
        "epochs": 1,
        "batch_size": 2,
        "holdout": 1,
        "height": 12,
        "width": 40,
    }
    return dataclasses.replace(find_recipe("kitti-road-quaternion"), **small | changes)  # type: ignore[arg-type]


def small_road_network(*, width: int = 8, whiten: bool = True) -> NetworkConfig:
    return NetworkConfig(task="segmentation", depth=1, width=width, whiten=whiten)


def write_run(run: Path, recipe: Recipe, *, seed: int = 0) -> Network:
    """A run directory like that of `fit`, around an untrained network."""
    torch.manual_seed(seed)
    network = Network(recipe.paper_network).eval()
    run.mkdir(parents=True, exist_ok=True)
    write_config(run, new_config(recipe, seed))
    meaning = {"recipe": as_json(recipe), "seed": seed, "epoch": recipe.epochs}
    write_tensors(run / CHECKPOINT, network.state_dict(), meaning)
    return network

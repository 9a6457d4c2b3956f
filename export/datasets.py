"""The real images an export looks at: to calibrate, to compare precisions, and to report.

A precision may ship or not by what it loses on `comparison`: images held out of training, or, where a recipe
trained on everything, training images. The test set is reported and decides nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quatserve.training.data.cifar import LAYOUTS, LabelledImages, read_cifar, read_label_names
from quatserve.training.data.kitti import Frame, list_frames, read_road, split_frames
from quatserve.training.errors import UserError
from quatserve.training.loop.prediction import Images
from quatserve.training.recipes.schema import Recipe

CALIBRATION_IMAGES, CALIBRATION_FRAMES = 512, 48
AGREEMENT_IMAGES, AGREEMENT_FRAMES = 5_000, 48
DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "kitti-road": "KITTI road"}


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """Images of a classifier's split."""

    split: str
    data: LabelledImages

    @property
    def images(self) -> Images:
        return np.ascontiguousarray(self.data.images.permute(0, 2, 3, 1).numpy())


@dataclass(frozen=True, kw_only=True)
class Framed:
    """Frames of a road network's split."""

    split: str
    frames: tuple[Frame, ...]
    height: int
    width: int

    @property
    def images(self) -> Images:
        images = read_road(self.frames, self.height, self.width).images
        return np.ascontiguousarray(images.permute(0, 2, 3, 1).numpy())


Split = Labelled | Framed


@dataclass(frozen=True, kw_only=True)
class Material:
    dataset: str
    labels: tuple[str, ...]
    calibration: Split  # of the training images
    comparison: Split  # decides whether fp16 and int8 may ship
    held_out: bool  # whether `comparison` was kept out of training
    reported: tuple[Split, ...]  # what model.json states scores of
    agreed: tuple[Split, ...]  # where it states how often fp16 and int8 answer as fp32 does
    samples: Split  # real images for the proof: not trained on, wherever there are such


def read_material(recipe: Recipe, data: Path) -> Material:
    return _road(recipe, data) if recipe.dataset == "kitti-road" else _labelled(recipe, data)


def _labelled(recipe: Recipe, data: Path) -> Material:
    layout = LAYOUTS[recipe.dataset]
    everything = read_cifar(layout, data, "train")
    cut = len(everything) - recipe.holdout
    calibration, agreement = (Labelled(split="training", data=part) for part in spread(everything[:cut]))
    held = Labelled(split=f"last-{recipe.holdout}-of-training", data=everything[cut:])
    test = Labelled(split="test", data=read_cifar(layout, data, "test"))
    return Material(
        dataset=DATASETS[recipe.dataset],
        labels=read_label_names(layout, data),
        calibration=calibration,
        comparison=held if recipe.holdout else agreement,
        held_out=recipe.holdout > 0,
        reported=(held, test) if recipe.holdout else (test,),
        agreed=() if recipe.holdout else (agreement, test),
        samples=held if recipe.holdout else test,
    )


def _road(recipe: Recipe, data: Path) -> Material:
    train, held = split_frames(list_frames(data), recipe.holdout)
    if not train:
        raise UserError(
            f"{data} has no training frames besides the {len(held)} held out: nothing to calibrate on"
        )

    def split(name: str, frames: Sequence[Frame]) -> Framed:
        return Framed(split=name, frames=tuple(frames), height=recipe.height, width=recipe.width)

    calibration = split("training", train[_evenly(len(train), CALIBRATION_FRAMES, 0)])
    agreement = split("training", train[_evenly(len(train), AGREEMENT_FRAMES, 1)])
    comparison = split(f"last-{recipe.holdout}-of-each-category", held) if held else agreement
    return Material(
        dataset=DATASETS[recipe.dataset],
        labels=("road",),
        calibration=calibration,
        comparison=comparison,
        held_out=bool(held),
        reported=(comparison,) if held else (),
        agreed=() if held else (agreement,),
        samples=comparison,
    )


def spread(train: LabelledImages) -> tuple[LabelledImages, LabelledImages]:
    """Training images to calibrate with, and others, where there are enough, to judge by."""
    first, second = (train[_evenly(len(train), AGREEMENT_IMAGES, start)] for start in (0, 1))
    return first[_evenly(len(first), CALIBRATION_IMAGES, 0)], second


def _evenly(total: int, count: int, start: int) -> slice:
    """About `count` of `total` places; another `start` means other places, where there are enough."""
    step = max(1, total // count)
    return slice(min(start, step - 1), None, step)

"""Reads the real images that an export needs: to calibrate, to compare precisions, and to report scores.

Whether fp16 and int8 ship depends on their loss on `comparison`: held-out images, or training images if the
recipe held out none. Test scores are reported and decide nothing.
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
    """Labelled images, for a classifier."""

    split: str
    data: LabelledImages

    @property
    def images(self) -> Images:
        return np.ascontiguousarray(self.data.images.permute(0, 2, 3, 1).numpy())


@dataclass(frozen=True, kw_only=True)
class Framed:
    """Frames with ground truth, for a road network."""

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
class Splits:
    """The splits of one data set, by their use in an export."""

    dataset: str
    labels: tuple[str, ...]
    calibration: Split  # training images that set the INT8 ranges
    comparison: Split  # decides whether fp16 and int8 ship
    held_out: bool  # whether `comparison` was held out of training
    reported: tuple[Split, ...]  # model.json states scores on these
    agreed: tuple[Split, ...]  # model.json states the agreement of fp16 and int8 with fp32 on these
    samples: Split  # real images for the parity proof, not trained on where such images exist


def read_splits(recipe: Recipe, data: Path) -> Splits:
    return _road(recipe, data) if recipe.dataset == "kitti-road" else _labelled(recipe, data)


def _labelled(recipe: Recipe, data: Path) -> Splits:
    layout = LAYOUTS[recipe.dataset]
    everything = read_cifar(layout, data, "train")
    cut = len(everything) - recipe.holdout
    calibration, agreement = (Labelled(split="training", data=part) for part in spread(everything[:cut]))
    held = Labelled(split=f"last-{recipe.holdout}-of-training", data=everything[cut:])
    test = Labelled(split="test", data=read_cifar(layout, data, "test"))
    return Splits(
        dataset=DATASETS[recipe.dataset],
        labels=read_label_names(layout, data),
        calibration=calibration,
        comparison=held if recipe.holdout else agreement,
        held_out=recipe.holdout > 0,
        reported=(held, test) if recipe.holdout else (test,),
        agreed=() if recipe.holdout else (agreement, test),
        samples=held if recipe.holdout else test,
    )


def _road(recipe: Recipe, data: Path) -> Splits:
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
    return Splits(
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
    """Two sets of training images: to calibrate with, and to compare on. They overlap only in tiny sets."""
    first, second = (train[_evenly(len(train), AGREEMENT_IMAGES, start)] for start in (0, 1))
    return first[_evenly(len(first), CALIBRATION_IMAGES, 0)], second


def _evenly(total: int, count: int, start: int) -> slice:
    """A slice of about `count` of `total` items; another `start` selects other items if there are enough."""
    step = max(1, total // count)
    return slice(min(start, step - 1), None, step)

"""The images that an export needs: to calibrate, to compare precisions, and to report scores.

Whether fp16 and int8 ship depends on their loss on `comparison`: held-out images, or else others that did not
calibrate. Test scores are reported and decide nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch.nn import functional as F

from quatserve.export.scenes import synthetic
from quatserve.training.data.cifar import LAYOUTS, LabelledImages, read_cifar, read_label_names
from quatserve.training.data.folder import read_folder
from quatserve.training.data.kitti import Frame, list_frames, read_road, split_frames
from quatserve.training.errors import UserError
from quatserve.training.loop.prediction import Images
from quatserve.training.loop.run import RunConfig
from quatserve.training.loop.sources import Source, folder_layout
from quatserve.training.recipes.schema import Recipe

CALIBRATION_IMAGES, CALIBRATION_FRAMES = 512, 48
AGREEMENT_IMAGES, AGREEMENT_FRAMES = 5_000, 48
SYNTHETIC = 32
DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "kitti-road": "KITTI road"}


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """Labelled images, for a classifier."""

    split: str
    data: LabelledImages
    size: tuple[int, int] | None = None  # of the network's input, if the images are kept larger

    @property
    def images(self) -> Images:
        images = self.data.images
        if self.size and images.shape[2:] != self.size:
            larger = images.float()
            images = F.interpolate(larger, self.size, mode="bilinear", antialias=True).round().byte()
        return np.ascontiguousarray(images.permute(0, 2, 3, 1).numpy())


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


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Images of which nothing else is known."""

    split: str
    images: Images


Split = Labelled | Framed | Pictures


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The images of one data set, by their use in an export."""

    dataset: str | None
    labels: tuple[str, ...]
    calibration: Split | None  # sets the INT8 ranges; None: there is no INT8 file
    comparison: Split  # decides whether fp16 and int8 ship
    held_out: bool  # whether `comparison` has labels and was held out of training
    reported: tuple[Split, ...]  # model.json states scores on these
    agreed: tuple[Split, ...]  # model.json states the agreement of fp16 and int8 with fp32 on these
    samples: Split  # real images for the parity proof, not trained on where such images exist
    public: bool  # whether images may be copied into the artifact, as part of its probe


def read_splits(run: Path, config: RunConfig, data: Path) -> Splits:
    """The splits of the data set that a run was trained on."""
    recipe = config.recipe
    if recipe.dataset == "kitti-road":
        return _road(recipe, data)
    if recipe.dataset == "folder":
        return _folder(run, config, data)
    if recipe.dataset in LAYOUTS:
        return _cifar(recipe, data)
    raise UserError(
        f"a run on {recipe.dataset!r} cannot be built yet: use quatserve.export.build on its network"
    )


def splits_of(images: Images | None, height: int, width: int, labels: tuple[str, ...]) -> Splits:
    """The splits of anybody's network: every second image calibrates, the others compare the precisions."""
    if images is None:
        calibration, comparison = (
            None,
            Pictures(split="synthetic", images=synthetic(SYNTHETIC, height, width)),
        )
    else:
        calibration = Pictures(split="calibration", images=images[::2])
        comparison = Pictures(split="comparison", images=images[1::2])
    return Splits(
        dataset=None,
        labels=labels,
        calibration=calibration,
        comparison=comparison,
        held_out=False,
        reported=(),
        agreed=(comparison,),
        samples=comparison,
        public=False,
    )


def _cifar(recipe: Recipe, data: Path) -> Splits:
    layout = LAYOUTS[recipe.dataset]
    everything = read_cifar(layout, data, "train")
    cut = len(everything) - recipe.holdout
    held = Labelled(split=f"last-{recipe.holdout}-of-training", data=everything[cut:])
    test = Labelled(split="test", data=read_cifar(layout, data, "test"))
    names = read_label_names(layout, data)
    return _labelled(DATASETS[recipe.dataset], names, everything[:cut], held, (test,), public=True)


def _folder(run: Path, config: RunConfig, data: Path) -> Splits:
    source, layout = Source(data, run), folder_layout(config.recipe)
    found = read_folder(data, layout, source.cached, recorded=source.recorded)
    held = Labelled(split="held-out", data=found.held)
    size = (layout.height, layout.width)
    return _labelled(data.resolve().name, config.labels, found.train, held, (), public=False, size=size)


def _labelled(
    dataset: str,
    labels: tuple[str, ...],
    train: LabelledImages,
    held: Labelled,
    tests: tuple[Labelled, ...],
    *,
    public: bool,
    size: tuple[int, int] | None = None,
) -> Splits:
    """Splits of labelled images; training images may be kept larger than `size`."""
    if not len(train):
        raise UserError(
            f"{dataset} has no training images besides the {len(held.data)} held out: none calibrate"
        )
    calibration, agreement = (Labelled(split="training", data=part, size=size) for part in spread(train))
    holds_out = len(held.data) > 0
    return Splits(
        dataset=dataset,
        labels=labels,
        calibration=calibration,
        comparison=held if holds_out else agreement,
        held_out=holds_out,
        reported=(held, *tests) if holds_out else tests,
        agreed=() if holds_out else (agreement, *tests),
        samples=held if holds_out else (*tests, agreement)[0],
        public=public,
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
        public=False,
    )


def spread(train: LabelledImages) -> tuple[LabelledImages, LabelledImages]:
    """Two sets of training images: to calibrate with, and to compare on. They overlap only in tiny sets."""
    first, second = (train[_evenly(len(train), AGREEMENT_IMAGES, start)] for start in (0, 1))
    return first[_evenly(len(first), CALIBRATION_IMAGES, 0)], second


def _evenly(total: int, count: int, start: int) -> slice:
    """A slice of about `count` of `total` items; another `start` selects other items if there are enough."""
    step = max(1, total // count)
    return slice(min(start, step - 1), None, step)

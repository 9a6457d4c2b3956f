"""Recipes: named functions that return a frozen, validated configuration of a whole training run.

`paper-*` recipes follow the paper's text. What it leaves out comes from its authors' published code: 200
epochs, batch 32 (CIFAR) or 8 (KITTI), L2 1e-4 on kernels (a decay of 2e-4, since the penalty's gradient is
2 x 1e-4 w), shifts of up to 1/8 and flips, soft Dice alone as the loss of roads. Not theirs are the scale of
the input, which every network here shares, all of CIFAR's 50,000 training images (they kept 5,000 aside), and
for roads what `_road_paper` lists. The other recipes are ours: the same networks in fewer epochs, further
cycles for what they have trained, and a wider network to teach them.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from .errors import UserError
from .kitti import HOLDOUT
from .network import NetworkConfig
from .schedule import OneCycle, Schedule, Steps

Dataset = Literal["cifar10", "cifar100", "kitti-road"]


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    shift_pixels: int = 4  # classification: how far the crop's centre moves
    crops: tuple[tuple[float, int], ...] = (
        (0.0, 32),
    )  # classification: (from this part of the run on, side)
    flip: Literal["none", "random", "alternate"] = "alternate"
    erase: float = 0.0  # classification: the side of a square that is blotted out, as a part of the crop's
    sizes: tuple[tuple[float, float], ...] = (
        (0.0, 1.0),
    )  # segmentation: (from this part of the run on, size of the input as a part of the recipe's)
    scale: float = 0.0  # segmentation: sizes change by exp(+-scale)
    shift: float = 0.0  # segmentation: of the frame's size
    colour: float = 0.0  # segmentation: strength of exposure, gamma and white balance
    shadow: float = 0.0  # segmentation: the most light that a shadow across a frame takes

    def __post_init__(self) -> None:
        for name in ("crops", "sizes"):
            starts = [start for start, _ in getattr(self, name)]
            if not starts or starts[0] != 0 or starts != sorted(set(starts)):
                raise ValueError(f"{name} must start at 0 and rise, not {starts}")
        if not all(0 < size <= 1 for _, size in self.sizes):
            raise ValueError(f"sizes are parts of the recipe's, within (0, 1], not {self.sizes}")
        for name in ("erase", "shadow"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} must lie within [0, 1)")

    def side(self, progress: float) -> int:
        """The side of the crop when `progress` of the run is done."""
        return next(side for start, side in reversed(self.crops) if progress >= start)

    def size(self, progress: float) -> float:
        """The size of a road network's input when `progress` of the run is done."""
        return next(size for start, size in reversed(self.sizes) if progress >= start)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run, but for its seed."""

    name: str
    summary: str
    dataset: Dataset
    network: NetworkConfig
    epochs: int
    batch_size: int
    schedule: Schedule
    weight_decay: float  # on kernels that SGD moves, never on gamma, beta or biases
    kernel_rate: float = 0.0  # > 0: hypercomplex kernels take orthogonal steps of this times the rate (Muon)
    augmentation: Augmentation = field(default_factory=Augmentation)
    label_smoothing: float = 0.0
    entropy_weight: float = 1.0  # segmentation: of cross-entropy, which is added to the soft Dice loss
    momentum: float = 0.9  # Nesterov's
    clip_norm: float = 1.0
    ema_decay: float = 0.999  # 0 keeps the last weights instead
    holdout: int = 0  # classification: last images of the training set; segmentation: of each category
    repeats: int = 1  # how often an epoch visits each training image
    distil: float = 0.0  # classification: the share of the loss that a teacher's answers have
    precision: Literal["fp32", "bf16"] = "fp32"  # of maps in training; weights, moments and loss are fp32
    prune: float = 0.0  # classification: the share of easy images that an epoch leaves out (pruning.py)
    continues: bool = False  # a further cycle: it begins with what another run has trained (--from)
    height: int = 32
    width: int = 32

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "clip_norm", "height", "width", "repeats"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be positive")
        if not (0 <= self.ema_decay < 1 and 0 <= self.label_smoothing < 1 and 0 <= self.momentum < 1):
            raise ValueError("ema_decay, label_smoothing and momentum must lie within [0, 1)")
        if not 0 <= self.prune < 1 or (self.prune and (self.repeats > 1 or self.dataset == "kitti-road")):
            raise ValueError("prune must lie within [0, 1), and goes with CIFAR and one visit an epoch")
        if min(self.weight_decay, self.kernel_rate, self.holdout, self.entropy_weight) < 0:
            raise ValueError("weight_decay, kernel_rate, holdout and entropy_weight must not be negative")
        if not 0 <= self.distil <= 1 or (self.distil and self.dataset == "kitti-road"):
            raise ValueError("distil must lie within [0, 1], and goes with CIFAR")
        if self.precision not in ("fp32", "bf16"):
            raise ValueError(f"precision {self.precision!r} must be fp32 or bf16")
        if (self.network.task == "segmentation") != (self.dataset == "kitti-road"):
            raise ValueError(f"{self.dataset} does not go with a {self.network.task} network")


# Small crops first: three quarters of the work for the same number of epochs.
GROWING_CROPS = ((0.0, 24), (0.4, 28), (0.74, 32))


def _cifar_fast(
    algebra: str, dataset: Dataset, classes: int, *, deep: bool = False, holdout: int = 0
) -> Recipe:
    network = NetworkConfig(algebra=algebra, classes=classes, depth=10 if deep else 2)
    kind = "deep" if deep else "shallow"
    held = f", the last {holdout:,} training images held out" if holdout else ""
    return Recipe(
        name=_name(dataset, algebra, "deep" if deep else "", "holdout" if holdout else ""),
        summary=f"{kind} {algebra} network on {dataset.upper()}, one cycle{held}",
        dataset=dataset,
        network=network,
        epochs=40,
        batch_size=128,
        schedule=OneCycle(peak=0.2),
        weight_decay=2e-4,
        kernel_rate=0.06,
        augmentation=Augmentation(crops=GROWING_CROPS),
        holdout=holdout,
    )


def _cifar_wide() -> Recipe:
    real = _cifar_fast("real", "cifar10", 10)
    return dataclasses.replace(
        real,
        name=_name(real.name, "wide"),
        summary="real network of twice the width on CIFAR10, one short cycle in bf16: a teacher",
        network=dataclasses.replace(real.network, width=2 * real.network.width),
        epochs=18,
        kernel_rate=0.09,
        augmentation=Augmentation(crops=((0.0, 24), (0.45, 28), (0.75, 32)), erase=0.25),
        precision="bf16",
    )


def _cifar_second() -> Recipe:
    first = _cifar_fast("quaternion", "cifar10", 10)
    return dataclasses.replace(
        first,
        name=_name(first.name, "second"),
        summary=f"a second cycle for what {first.name} has trained (--from), skipping much that it knows",
        epochs=100,
        schedule=OneCycle(peak=0.1, warm_up=0.05),
        augmentation=Augmentation(crops=((0.0, 24), (0.35, 28), (0.7, 32))),
        prune=0.5,
        continues=True,
    )


def _cifar_third() -> Recipe:
    second = _cifar_second()
    return dataclasses.replace(
        second,
        name=_name(_cifar_fast("quaternion", "cifar10", 10).name, "third"),
        summary=f"a third cycle for what {second.name} has trained (--from): erased squares, small batches",
        epochs=130,
        batch_size=64,
        augmentation=Augmentation(crops=((0.0, 24), (0.3, 28), (0.6, 32)), erase=0.35),
    )


def _cifar_taught() -> Recipe:
    third = _cifar_third()
    return dataclasses.replace(
        third,
        name=_name(_cifar_fast("quaternion", "cifar10", 10).name, "taught"),
        summary=f"for what {third.name} has trained (--from): a --teacher's answers, {_cifar_wide().name}'s",
        epochs=160,
        schedule=OneCycle(peak=0.06, warm_up=0.05),
        augmentation=Augmentation(crops=((0.0, 24), (0.2, 28), (0.45, 32))),
        distil=0.9,
    )


def _cifar_paper(algebra: str, dataset: Dataset, classes: int, *, deep: bool = False) -> Recipe:
    kind = "deep" if deep else "shallow"
    return Recipe(
        name=_name("paper", dataset, algebra, "deep" if deep else ""),
        summary=f"the paper's procedure: {kind} {algebra} network on {dataset.upper()}",
        dataset=dataset,
        network=NetworkConfig(algebra=algebra, classes=classes, depth=10 if deep else 2),
        epochs=200,  # from the authors' code
        batch_size=32,  # from the authors' code
        schedule=Steps(rates=((0, 0.01), (10, 0.1), (120, 0.01), (150, 0.001))),
        weight_decay=2e-4,  # from the authors' code
        augmentation=Augmentation(shift_pixels=4, flip="random"),  # from the authors' code
        ema_decay=0.0,
    )


# Ground truth shrunk to this size and enlarged again keeps an IoU of 0.995 on the held-out frames (0.997 at
# the paper's 93 x 310), for less than half of the work; the field of view, 91 pixels, spans more street.
ROAD_HEIGHT, ROAD_WIDTH = 64, 208
ROAD_DILATIONS = (1, 2, 4, 8, 4, 2)
GROWING_FRAMES = ((0.0, 0.75), (0.5, 1.0))  # four fifths of the work


def _road_fast(algebra: str) -> Recipe:
    return Recipe(
        name=_name("kitti-road", algebra),
        summary=f"whitening {algebra} road network, dilated, last {HOLDOUT} frames of each category held out",
        dataset="kitti-road",
        network=NetworkConfig(algebra=algebra, task="segmentation", dilations=ROAD_DILATIONS),
        epochs=40,
        batch_size=4,
        schedule=OneCycle(peak=0.1),
        weight_decay=2e-4,
        kernel_rate=0.1,
        augmentation=Augmentation(
            flip="random", sizes=GROWING_FRAMES, scale=0.35, shift=0.1, colour=0.5, shadow=0.7
        ),
        ema_decay=0.99,
        holdout=HOLDOUT,
        height=ROAD_HEIGHT,
        width=ROAD_WIDTH,
    )


def _road_paper(algebra: str) -> Recipe:
    # Not theirs: an epoch is every training frame, where they drew 150 at random; `scale` also changes the
    # aspect by a third of what it changes the size; and the last layer, 1 x 1, is decayed like the others.
    return Recipe(
        name=_name("paper", "kitti-road", algebra),
        summary=f"the paper's procedure: {algebra} road network without whitening",
        dataset="kitti-road",
        network=NetworkConfig(algebra=algebra, task="segmentation", whiten=False),
        epochs=200,  # from the authors' code
        batch_size=8,  # from the authors' code
        schedule=Steps(
            rates=((0, 0.01), (10, 0.1), (50, 0.01), (100, 0.001), (150, 0.0001))
        ),  # 50: their code
        weight_decay=2e-4,  # from the authors' code
        augmentation=Augmentation(flip="random", scale=0.2, shift=0.2),  # from the authors' code
        entropy_weight=0.0,  # from the authors' code
        ema_decay=0.0,
        holdout=HOLDOUT,  # theirs drew validation frames at random from the training folder
        height=93,
        width=310,
    )


def _name(*parts: str) -> str:
    return "-".join(part for part in parts if part)


def _all() -> dict[str, Callable[[], Recipe]]:
    ours = ("quaternion", "complex", "real", "octonion")
    paper = ours[:3]
    sets: tuple[tuple[Dataset, int], ...] = (("cifar10", 10), ("cifar100", 100))
    kinds = [(dataset, classes, deep) for dataset, classes in sets for deep in (False, True)]
    builders: list[Callable[[], Recipe]] = [
        *(partial(_cifar_fast, algebra, *kind[:2], deep=kind[2]) for kind in kinds for algebra in ours),
        partial(_cifar_fast, "quaternion", "cifar10", 10, holdout=5_000),
        _cifar_wide,
        _cifar_second,
        _cifar_third,
        _cifar_taught,
        *(partial(_road_fast, algebra) for algebra in ours),
        *(partial(_cifar_paper, algebra, *kind[:2], deep=kind[2]) for kind in kinds for algebra in paper),
        *(partial(_road_paper, algebra) for algebra in paper),
    ]
    return {build().name: build for build in builders}


RECIPES = _all()


def find_recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise UserError(f"recipe {name!r} is unknown: `python -m training recipes` lists them")
    return RECIPES[name]()


def as_json(recipe: Recipe) -> dict[str, Any]:
    """A recipe as plain data; `from_json` takes it back."""
    data = dataclasses.asdict(recipe)
    data["schedule"]["kind"] = type(recipe.schedule).__name__
    return data


def from_json(data: dict[str, Any]) -> Recipe:
    fields = dict(data)
    augmentation = dict(fields.pop("augmentation"))
    augmentation["crops"] = tuple((float(start), int(side)) for start, side in augmentation["crops"])
    if "sizes" in augmentation:  # older runs have none
        augmentation["sizes"] = tuple((float(start), float(size)) for start, size in augmentation["sizes"])
    schedule = dict(fields.pop("schedule"))
    kind = {"OneCycle": OneCycle, "Steps": Steps}[schedule.pop("kind")]
    if "rates" in schedule:
        schedule["rates"] = tuple((int(start), float(rate)) for start, rate in schedule["rates"])
    network = dict(fields.pop("network"))
    network["dilations"] = tuple(network["dilations"])
    return Recipe(
        **fields,
        schedule=kind(**schedule),
        network=NetworkConfig(**network),
        augmentation=Augmentation(**augmentation),
    )

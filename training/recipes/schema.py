"""The schema of a recipe: everything that decides a training run but its seed."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from quatserve.training.networks.residual import NetworkConfig
from quatserve.training.networks.teacher import TeacherConfig
from quatserve.training.recipes.schedule import OneCycle, Schedule, Steps

# Fields of recipes of the past, which may stand in the config.json of a run.
RETIRED = {"label_smoothing", "repeats", "prune", "continues"}

Dataset = Literal["cifar10", "cifar100", "kitti-road"]


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    shift_pixels: int = 4  # classification: how far the crop's centre moves
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
        starts = [start for start, _ in self.sizes]
        if not starts or starts[0] != 0 or starts != sorted(set(starts)):
            raise ValueError(f"sizes must start at 0 and rise, not {starts}")
        if not all(0 < size <= 1 for _, size in self.sizes):
            raise ValueError(f"sizes are parts of the recipe's, within (0, 1], not {self.sizes}")
        for name in ("erase", "shadow"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} must lie within [0, 1)")

    def size(self, progress: float) -> float:
        """The size of a road network's input when `progress` of the run is done."""
        return next(size for start, size in reversed(self.sizes) if progress >= start)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run, but for its seed."""

    name: str
    summary: str
    dataset: Dataset
    network: NetworkConfig | TeacherConfig
    epochs: int
    batch_size: int
    schedule: Schedule
    weight_decay: float  # of kernels that SGD moves; never of beta and biases
    gamma_decay: float = 0.0  # of the norms' gamma, which nothing else keeps from growing
    kernel_rate: float = 0.0  # > 0: hypercomplex kernels take orthogonal steps of this times the rate (Muon)
    augmentation: Augmentation = field(default_factory=Augmentation)
    entropy_weight: float = 1.0  # segmentation: of cross-entropy, which is added to the soft Dice loss
    momentum: float = 0.9  # Nesterov's
    clip_norm: float = 1.0
    ema_decay: float = 0.999  # 0 keeps the last weights instead
    holdout: int = 0  # classification: last images of the training set; segmentation: of each category
    distil: float = 0.0  # classification: the share of the loss that a teacher's answers have
    teacher: str = ""  # the recipe whose run in `runs/` teaches this one, unless --teacher names another
    precision: Literal["fp32", "bf16"] = "fp32"  # of maps in training; weights, moments and loss are fp32
    checkpoint: Literal["fp32", "fp16"] = "fp32"  # of the final weights on disk
    height: int = 32
    width: int = 32

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "clip_norm", "height", "width"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be positive")
        if not (0 <= self.ema_decay < 1 and 0 <= self.momentum < 1):
            raise ValueError("ema_decay and momentum must lie within [0, 1)")
        for name in ("weight_decay", "gamma_decay", "kernel_rate", "holdout", "entropy_weight"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must not be negative")
        if not 0 <= self.distil <= 1 or (self.distil and self.dataset == "kitti-road"):
            raise ValueError("distil must lie within [0, 1], and goes with CIFAR")
        if self.precision not in ("fp32", "bf16"):
            raise ValueError(f"precision {self.precision!r} must be fp32 or bf16")
        if self.checkpoint not in ("fp32", "fp16"):
            raise ValueError(f"checkpoint {self.checkpoint!r} must be fp32 or fp16")
        if (self.network.task == "segmentation") != (self.dataset == "kitti-road"):
            raise ValueError(f"{self.dataset} does not go with a {self.network.task} network")

    @property
    def paper_network(self) -> NetworkConfig:
        """One of the paper's networks, which all recipes train but those of teachers."""
        if not isinstance(self.network, NetworkConfig):
            raise TypeError(f"{self.name} trains a teacher, not one of the paper's networks")
        return self.network


def named(*parts: str) -> str:
    return "-".join(part for part in parts if part)


def as_json(recipe: Recipe) -> dict[str, Any]:
    """A recipe as plain data; `from_json` takes it back."""
    data = dataclasses.asdict(recipe)
    data["schedule"]["kind"] = type(recipe.schedule).__name__
    return data


def from_json(data: dict[str, Any]) -> Recipe:
    """A recipe from plain data; what older versions said and this one has no use for is left out."""
    fields = {name: value for name, value in data.items() if name not in RETIRED}
    augmentation = dict(fields.pop("augmentation"))
    augmentation.pop("crops", None)
    if "sizes" in augmentation:  # older runs have none
        augmentation["sizes"] = tuple((float(start), float(size)) for start, size in augmentation["sizes"])
    schedule = dict(fields.pop("schedule"))
    kind = {"OneCycle": OneCycle, "Steps": Steps}[schedule.pop("kind")]
    if "rates" in schedule:
        schedule["rates"] = tuple((int(start), float(rate)) for start, rate in schedule["rates"])
    network = _network(fields.pop("network"))
    return Recipe(
        **fields,
        schedule=kind(**schedule),
        network=network,
        augmentation=Augmentation(**augmentation),
    )


def _network(data: dict[str, Any]) -> NetworkConfig | TeacherConfig:
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
    }
    return TeacherConfig(**fields) if "kind" in fields else NetworkConfig(**fields)

"""The schema of a recipe: everything that decides a training run but its seed.

Pydantic dataclasses: validated wherever one is made, `dataclasses.replace` included. What belongs to one task
lives in that task's own part.
"""

import dataclasses
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass

from quatserve.training.networks.residual import NetworkConfig
from quatserve.training.networks.teacher import TeacherConfig
from quatserve.training.recipes.schedule import Schedule

STRICT = ConfigDict(extra="forbid")
Dataset = Literal["cifar10", "cifar100", "kitti-road", "folder", "masks"]
SEGMENTED: frozenset[Dataset] = frozenset({"kitti-road", "masks"})
Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Classification:
    """How a classifier's images are varied, and what its classes weigh."""

    kind: Literal["classification"] = "classification"
    crop: Annotated[float, Field(gt=0, le=1)] = 1.0  # random resized crops keep this part of the area or more
    margin: Annotated[float, Field(ge=1, le=4)] = 1.0  # photographs are kept this much larger, to be cropped
    shift_pixels: NonNegativeInt = 4  # an image moves by up to this much along each axis
    flip: Literal["none", "random", "alternate"] = "alternate"
    colour: NonNegativeFloat = 0.0  # strength of exposure, gamma and white balance
    erase: Share = 0.0  # the side of a square that is blotted out, as a part of the image's
    balance: Literal["none", "weights", "draw"] = "none"  # rare classes: more loss, or more draws


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Segmentation:
    """How frames and their ground truth are varied, and the loss."""

    kind: Literal["segmentation"] = "segmentation"
    flip: bool = True
    sizes: tuple[tuple[float, float], ...] = ((0.0, 1.0),)  # (from this part of the run on, part of the size)
    scale: NonNegativeFloat = 0.0  # sizes change by exp(+-scale)
    shift: NonNegativeFloat = 0.0  # of the frame's size
    colour: NonNegativeFloat = 0.0  # strength of exposure, gamma and white balance
    shadow: Share = 0.0  # the most light that a shadow across a frame takes
    entropy_weight: NonNegativeFloat = 1.0  # of cross-entropy, which is added to the soft Dice loss

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.sizes]
        if not starts or starts[0] != 0 or starts != sorted(set(starts)):
            raise ValueError(f"sizes must start at 0 and rise, not {starts}")
        if not all(0 < size <= 1 for _, size in self.sizes):
            raise ValueError(f"sizes are parts of the recipe's, within (0, 1], not {self.sizes}")

    def size(self, progress: float) -> float:
        """The size of the network's input when `progress` of the run is done."""
        return next(size for start, size in reversed(self.sizes) if progress >= start)


Task = Annotated[Classification | Segmentation, Field(discriminator="kind")]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Recipe:
    """One training run, but for its seed."""

    name: str
    summary: str
    dataset: Dataset
    network: NetworkConfig | TeacherConfig
    task: Task
    epochs: PositiveInt
    batch_size: PositiveInt
    schedule: Schedule
    weight_decay: NonNegativeFloat  # of kernels that SGD moves; never of beta and biases
    gamma_decay: NonNegativeFloat = 0.0  # of the norms' gamma, which nothing else keeps from growing
    kernel_rate: NonNegativeFloat = 0.0  # > 0: orthogonal steps (Muon) of this times the rate
    momentum: Share = 0.9  # Nesterov's
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    ema_decay: Share = 0.999  # 0 keeps the last weights instead
    holdout: NonNegativeInt = 0  # of the last training images; of KITTI's, of each category
    held_share: Share = 0.0  # of each class of a user's own images, instead
    distil: Annotated[float, Field(ge=0, le=1)] = 0.0  # the share of the loss that a teacher's answers have
    teacher: str = ""  # the recipe whose run in `runs/` teaches this one, unless --teacher names another
    precision: Literal["fp32", "bf16"] = "fp32"  # of maps in training; weights, moments and loss are fp32
    checkpoint: Literal["fp32", "fp16"] = "fp32"  # of the final weights on disk
    height: PositiveInt = 32
    width: PositiveInt = 32

    def __post_init__(self) -> None:
        if self.task.kind != self.network.task:
            raise ValueError(f"a {self.network.task} network does not go with the task {self.task.kind}")
        if (self.dataset in SEGMENTED) != (self.task.kind == "segmentation"):
            raise ValueError(f"{self.dataset} does not go with a {self.network.task} network")
        if self.distil and self.task.kind != "classification":
            raise ValueError("distil goes with classifiers only")
        if self.holdout and self.held_share:
            raise ValueError(f"holdout {self.holdout} and held_share {self.held_share}: set one of them to 0")

    @property
    def holds_out(self) -> bool:
        """Whether some training images are kept for validation."""
        return self.holdout > 0 or self.held_share > 0

    @property
    def paper_network(self) -> NetworkConfig:
        """One of the paper's networks, which all recipes train but those of teachers."""
        if not isinstance(self.network, NetworkConfig):
            raise TypeError(f"{self.name} trains a teacher, not one of the paper's networks")
        return self.network


_RECIPE = TypeAdapter(Recipe)
TAGS = {"classification", "segmentation", "OneCycle", "Steps"}  # of parts, in the places of errors


def named(*parts: str) -> str:
    return "-".join(part for part in parts if part)


def as_json(recipe: Recipe) -> dict[str, Any]:
    """A recipe as plain data; `from_json` takes it back."""
    data: dict[str, Any] = _RECIPE.dump_python(recipe, mode="json")
    return data


def from_json(data: dict[str, Any]) -> Recipe:
    """A recipe from plain data, of this version or of an earlier one; ValueError in one line."""
    fields = data if "task" in data else _of_flat_recipe(data)
    try:
        return _RECIPE.validate_python(fields | {"network": _network(fields["network"])})
    except ValidationError as error:
        raise ValueError(_in_one_line(error)) from error


def _network(data: dict[str, Any]) -> NetworkConfig | TeacherConfig:
    kind: type[NetworkConfig | TeacherConfig] = TeacherConfig if "kind" in data else NetworkConfig
    if strange := data.keys() - {field.name for field in dataclasses.fields(kind)}:
        raise ValueError(f"no network has {', '.join(sorted(strange))}")
    adapter: TypeAdapter[NetworkConfig | TeacherConfig] = TypeAdapter(kind)
    return adapter.validate_python(data)


def _in_one_line(error: ValidationError) -> str:
    """The first fault: field, value and bound."""
    first, *others = error.errors(include_url=False)
    field = ".".join(str(part) for part in first["loc"] if part not in TAGS)
    if field and error.title == NetworkConfig.__name__:
        field = f"network.{field}"
    message = first["msg"].removeprefix("Value error, ")
    named = f"{field} = {first['input']!r}: " if field else ""
    return named + message + (f" (and {len(others)} more)" if others else "")


# Earlier versions kept the parts of both tasks side by side, and had fields that no recipe has any more.
RETIRED = {"label_smoothing", "repeats", "prune", "continues"}


def _of_flat_recipe(data: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in data.items() if name not in RETIRED}
    how = fields.pop("augmentation")
    entropy_weight = fields.pop("entropy_weight", 1.0)
    if data["dataset"] == "kitti-road":
        kept = ("sizes", "scale", "shift", "colour", "shadow")
        task = {name: how[name] for name in kept if name in how}
        task |= {"kind": "segmentation", "flip": how["flip"] != "none", "entropy_weight": entropy_weight}
    else:
        task = {name: how[name] for name in ("shift_pixels", "flip", "erase") if name in how}
        task["kind"] = "classification"
    return fields | {"task": task}

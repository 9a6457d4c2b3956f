"""The description of a model, `models/NAME/VERSION/model.json`: one definition for writer and reader.

The exporter writes it and the service reads it. It needs only pydantic, so both can import it.
"""

import hashlib
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from quatserve.service.artifact_files import read_regular
from quatserve.service.errors import ArtifactError

SCHEMA_VERSION: Final = 2
DESCRIPTION_FILE = "model.json"
PROBE_FILE: Final = "probe.npz"
MAX_PROBE_BYTES = 2**27  # the file, and its arrays: ten times those of a network of 512 x 512
CARD_FILE = "README.md"
MAX_DESCRIPTION_BYTES = 4 * 2**20  # ten thousand labels take less than one
MAX_GRAPH_BYTES = 2**31 - 1  # of a protobuf message
INPUT_NAME = "images"
NAME_PATTERN = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
VERSION_PATTERN = re.compile(r"[1-9][0-9]{0,8}")


Level = Annotated[int, Field(ge=0, le=255)]
Colour = tuple[Level, Level, Level]


class Task(StrEnum):
    CLASSIFICATION = "classification"
    SEGMENTATION = "segmentation"


OUTPUT_NAMES = {Task.CLASSIFICATION: "probabilities", Task.SEGMENTATION: "heatmap"}
MAX_TOLERANCES = {Task.CLASSIFICATION: 0.25, Task.SEGMENTATION: 64.0}  # a quarter of the output's range


class Precision(StrEnum):
    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"


class Resize(StrEnum):
    """How an upright RGB image is scaled to the network's size, by Pillow's antialiased bilinear filter."""

    CENTRE_SQUARE = "centre-square"  # crop the largest centred square, then scale
    STRETCH = "stretch"  # scale to the size; the aspect ratio is not kept


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _if_known() -> Any:
    """A field that is left out of model.json if nobody knows its value."""
    return Field(default=None, exclude_if=lambda value: value is None)


class ModelFile(_Strict):
    """One ONNX graph. `tolerance` bounds |output - probe| on any provider, in units of the output."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    precision: Precision
    bytes: Annotated[int, Field(gt=0, le=MAX_GRAPH_BYTES)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    tolerance: Annotated[float, Field(gt=0)]


class ProbeFile(_Strict):
    """`probe.npz`: `images` (8 inputs) and one expected output array per precision, named after it."""

    name: Literal["probe.npz"] = PROBE_FILE
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Metric(_Strict):
    name: str  # "error", "iou", ...
    value: float
    dataset: str | None = _if_known()
    split: str  # "test", or the name of the held-out run of frames
    samples: Annotated[int, Field(gt=0)]
    precision: Precision = Precision.FP32


class Parity(_Strict):
    """The written fp32 file in onnxruntime against the unfolded network in float64."""

    max_difference: float  # of logits
    max_logit: Annotated[float, Field(gt=0)]  # the largest: the scale of the difference
    max_levels: int | None = _if_known()  # segmentation: of the uint8 maps
    images: Annotated[int, Field(gt=0)]
    batches: tuple[int, ...]


class Parameters(_Strict):
    """With running statistics, without them, and in the folded graph."""

    total: Annotated[int, Field(gt=0)]
    trainable: Annotated[int, Field(gt=0)]
    folded: Annotated[int, Field(gt=0)]


class Calibration(_Strict):
    """A temperature, fitted on held-out images and folded into the last layer, and what it changed."""

    temperature: Annotated[float, Field(gt=0)]
    error_before: Annotated[float, Field(ge=0, le=1)]  # expected calibration error
    error_after: Annotated[float, Field(ge=0, le=1)]
    dataset: str  # of the errors
    split: str
    samples: Annotated[int, Field(gt=0)]


class Training(_Strict):
    """How the weights came about, as far as that is known."""

    recipe: str | None = _if_known()
    epochs: Annotated[int, Field(gt=0)] | None = _if_known()
    seed: int | None = _if_known()
    commit: str | None = _if_known()
    start: str | None = _if_known()  # the run whose weights it started from, if they were not random
    teacher: str | None = _if_known()  # whose answers it learned from, if not from labels alone
    dataset: str | None = _if_known()
    data_licence: str | None = _if_known()
    weights_licence: str | None = _if_known()


class Description(_Strict):
    """Everything that the service and people need to know about a model."""

    schema_version: Literal[2] = SCHEMA_VERSION
    name: Annotated[str, Field(pattern=rf"^{NAME_PATTERN.pattern}$")]
    version: Annotated[int, Field(ge=1)]
    task: Task
    summary: str
    network: str | None = _if_known()
    algebra: str | None = _if_known()
    stem_stride: Annotated[int, Field(gt=0)] | None = _if_known()
    labels: tuple[str, ...]  # one per class; of several maps, the first is the background's
    palette: tuple[Colour, ...] = Field(default=(), exclude_if=lambda palette: not palette)
    """One colour per label of several maps: the mask is a picture of class indices."""
    threshold: Annotated[float, Field(gt=0, lt=1)] | None = _if_known()
    """Of a single map: a pixel is foreground from this probability on."""
    confidence_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """Of a classifier: of held-out answers at least as probable, 95 % are right; null if not measured."""
    calibration: Calibration | None = _if_known()
    height: Annotated[int, Field(gt=0)]
    width: Annotated[int, Field(gt=0)]
    resize: Resize
    files: Annotated[tuple[ModelFile, ...], Field(min_length=1)]
    probe: ProbeFile
    metrics: tuple[Metric, ...]
    parity: Parity
    parameters: Parameters
    multiply_accumulates: Annotated[int, Field(gt=0)]
    training: Training | None = _if_known()

    @field_validator("schema_version", mode="before")
    @classmethod
    def _current(cls, version: object) -> object:
        if version == SCHEMA_VERSION - 1:
            raise PydanticCustomError(
                "schema_version", f"{version} is not loaded any more: build the run again"
            )
        return version

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        precisions = [file.precision for file in self.files]
        if len(set(precisions)) != len(precisions):
            raise ValueError("each precision may have one file only")
        if Precision.FP32 not in precisions:
            raise ValueError("an artifact always has its fp32 file")
        if len(set(self.labels)) != len(self.labels) or not self.labels:
            raise ValueError("labels must be distinct, and at least one")
        _check_tolerances(self.task, self.files)
        self._check_masks()
        return self

    def _check_masks(self) -> None:
        """A single map has a threshold, and several have a palette; a classifier has neither."""
        maps = len(self.labels) if self.task is Task.SEGMENTATION else 0
        if (self.threshold is not None) != (maps == 1):
            raise ValueError("threshold belongs to a segmentation network of one class, which needs it")
        if len(self.palette) != (maps if maps > 1 else 0):
            raise ValueError(
                "palette has one colour for each label of a segmentation network of several classes"
            )

    @property
    def foreground(self) -> tuple[str, ...]:
        """The classes that a segmentation network finds."""
        return self.labels if len(self.labels) == 1 else self.labels[1:]

    @property
    def output_name(self) -> str:
        return OUTPUT_NAMES[self.task]

    def file(self, precision: Precision) -> ModelFile | None:
        return next((file for file in self.files if file.precision is precision), None)


def _check_tolerances(task: Task, files: tuple[ModelFile, ...]) -> None:
    """A tolerance as large as the outputs would disable the probe."""
    most = MAX_TOLERANCES[task]
    for file in files:
        if file.tolerance > most:
            raise ValueError(f"{file.name}: the tolerance is {file.tolerance:g}, at most {most:g} is allowed")


def first_fault(error: ValidationError) -> str:
    """The field of the first fault in a document, and what is wrong with it."""
    fault = error.errors()[0]
    field = ".".join(str(part) for part in fault["loc"]) or "document"
    return f"{field}: {fault['msg']}"


def read_description(directory: Path) -> Description:
    """Read and validate `directory/model.json`; its name and version must match the path."""
    path = directory / DESCRIPTION_FILE
    try:
        description = Description.model_validate_json(read_regular(path, MAX_DESCRIPTION_BYTES))
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise ArtifactError(f"{path}: {first_fault(error)}") from error
    if (description.name, str(description.version)) != (directory.parent.name, directory.name):
        raise ArtifactError(
            f"{path}: describes {description.name}/{description.version}, "
            f"but lies in {directory.parent.name}/{directory.name}"
        )
    return description


def read_verified(path: Path, sha256: str, max_bytes: int) -> bytes:
    """Read a file once, check its digest, and return those bytes: they cannot change in between."""
    try:
        data = read_regular(path, max_bytes)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror})") from error
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise ArtifactError(f"{path}: sha256 is {found[:12]}..., model.json says {sha256[:12]}...")
    return data


def verify_digests(directory: Path, description: Description) -> None:
    """Check that every file in the description exists and has its digest."""
    for file in description.files:
        read_verified(directory / file.name, file.sha256, file.bytes)
    read_verified(directory / description.probe.name, description.probe.sha256, MAX_PROBE_BYTES)

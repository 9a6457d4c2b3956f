"""What the checks work with: the artifacts, the way to load one, and a clock. Tests replace each of them."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from quatserve.service.artifact import (
    Description,
    ModelFile,
    Precision,
    Task,
    read_description,
    read_verified,
)
from quatserve.service.engine.load import Model, load_model
from quatserve.service.engine.padding import Images
from quatserve.service.engine.probe import Probe, Run, read_probe
from quatserve.service.engine.versions import read_repository
from quatserve.service.settings import Device, PrecisionChoice, Settings

FLOATS = (Precision.FP32, Precision.FP16)
RUNS = 20  # whose median is the time of a run
WARM_RUNS = 3


@dataclass(frozen=True)
class Artifact:
    """One version on disk."""

    directory: Path
    description: Description

    @property
    def name(self) -> str:
        return self.description.name

    def probe(self, precision: Precision) -> Probe:
        return read_probe(self.directory, self.description, self._file(precision))

    def graph(self, precision: Precision) -> bytes:
        file = self._file(precision)
        return read_verified(self.directory / file.name, file.sha256, file.bytes)

    def _file(self, precision: Precision) -> ModelFile:
        file = self.description.file(precision)
        assert file is not None  # the checks ask for files that are there
        return file


@dataclass(frozen=True, kw_only=True)
class Bench:
    settings: Settings
    load: Callable[[Path, Settings], Model] = load_model
    clock: Callable[[], float] = time.perf_counter

    def artifacts(self) -> list[Artifact]:
        """The highest version of each model."""
        root = self.settings.models_dir
        newest = {name: versions[0] for name, versions in read_repository(root).versions.items() if versions}
        directories = [root / name / str(version) for name, version in sorted(newest.items())]
        return [Artifact(directory, read_description(directory)) for directory in directories]

    def graphs(self) -> Iterator[tuple[Artifact, Precision]]:
        """Each artifact in fp32 and, if it has it, in fp16."""
        for artifact in self.artifacts():
            for precision in FLOATS:
                if artifact.description.file(precision):
                    yield artifact, precision

    def heaviest(self) -> Artifact:
        """The network with the most arithmetic per image, a segmentation network if there is one."""
        return max(
            self.artifacts(),
            key=lambda a: (a.description.task is Task.SEGMENTATION, a.description.multiply_accumulates),
        )

    def open(self, artifact: Artifact, precision: Precision, **changes: Any) -> Model:
        """Load an artifact onto the GPU."""
        wanted = {"device": Device.CUDA, "precision": PrecisionChoice(precision.value), **changes}
        return self.load(artifact.directory, self.settings.model_copy(update=wanted))

    def seconds(self, run: Run, batch: Images) -> float:
        """The median time of a run that is warm."""
        for _ in range(WARM_RUNS):
            run(batch)
        return median(self.timed(run, batch) for _ in range(RUNS))

    def timed(self, run: Run, batch: Images) -> float:
        begun = self.clock()
        run(batch)
        return self.clock() - begun


def batch_of(description: Description, size: int) -> Images:
    """Noise in the size of the network's input."""
    shape = (size, description.height, description.width, 3)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"

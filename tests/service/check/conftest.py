"""Tiny artifacts, a bench on the stand-in for CUDA, and one on models whose runs take scripted times."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quatserve.service.artifact import Precision, read_description
from quatserve.service.check.bench import Bench
from quatserve.service.engine.load import Model
from quatserve.service.engine.session import CUDA
from quatserve.service.settings import Settings
from tests.service.artifacts import (
    classifier_graph,
    expected_probabilities,
    probe_images,
    segmenter_graph,
    write,
)
from tests.service.engine.cuda.conftest import gpu as gpu

BUCKETS = (1, 4, 8, 32)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A classifier in every precision, and a segmenter in fp32 and fp16."""
    images, size = probe_images((32, 32)), (32, 32)

    def add(
        name: str, task: str, graph: bytes, rows: NDArray[Any], tolerance: float, *precisions: str
    ) -> None:
        graphs, outputs = dict.fromkeys(precisions, graph), dict.fromkeys(precisions, rows)
        write(tmp_path, name, 1, task, size, graphs, outputs, images, tolerance)

    probabilities = expected_probabilities(images).astype(np.float32)
    add("colours", "classification", classifier_graph(size), probabilities, 1e-4, "fp32", "fp16", "int8")
    add(
        "road",
        "segmentation",
        segmenter_graph(size),
        images[..., :1].transpose(0, 3, 1, 2),
        1,
        "fp32",
        "fp16",
    )
    return tmp_path


@pytest.fixture
def bench(models: Path, gpu: Any) -> Bench:
    return Bench(settings=Settings(models_dir=models, max_batch_s=60))


@dataclass
class Timed:
    """A session whose runs move a clock by what `cost` says of a batch and the batch before it."""

    cost: Callable[[int, int], float]
    clock: "Clock"
    before: int = 0
    provider: str = CUDA

    def run(self, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        self.clock.now += self.cost(len(images), self.before)
        self.before = len(images)
        return images


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class TimedModels:
    """Stands for `load_model`. `costs` may differ by precision."""

    costs: dict[Precision, Callable[[int, int], float]]
    clock: Clock = field(default_factory=Clock)
    prepare: Callable[[], None] = lambda: None

    def load(self, directory: Path, settings: Settings) -> Model:
        precision = Precision(settings.precision.value)
        return Model(
            description=read_description(directory),
            precision=precision,
            session=Timed(self.costs[precision], self.clock),  # type: ignore[arg-type]
            max_batch=BUCKETS[-1],
            buckets=BUCKETS,
            probe=lambda _: 0.0,
            prepare_thread=self.prepare,
        )

    def bench(self, models: Path) -> Bench:
        return Bench(settings=Settings(models_dir=models), load=self.load, clock=self.clock)

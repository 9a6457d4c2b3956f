"""One shared service for the tests that only ask; those that break things start their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.service.artifacts import write_both
from tests.service.harness import RunningService

Start = Callable[..., RunningService]


@pytest.fixture(scope="session")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_both(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def service(models_dir: Path) -> Iterator[RunningService]:
    running = RunningService(models_dir)
    yield running
    assert running.stop() == 0


@pytest.fixture
def client(service: RunningService) -> httpx.Client:
    return service.client


@pytest.fixture
def start(models_dir: Path) -> Iterator[Start]:
    """Start a service with other settings; it is stopped after the test."""
    started: list[RunningService] = []

    def begin(directory: Path = models_dir, **settings: object) -> RunningService:
        started.append(RunningService(directory, **settings))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for running in started:
        if not running._log.closed:
            running.stop()

"""The service as a process, here on the CPU alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quatserve.service.artifact import Task
from quatserve.service.check import over_http
from quatserve.service.check.bench import Bench
from quatserve.service.check.report import Verdict
from quatserve.service.settings import Device, Settings


def test_a_real_service_is_started_asked_and_ended(models: Path) -> None:
    bench = Bench(settings=Settings(models_dir=models))
    with over_http.running(bench, Device.CPU) as (port, ready_s):
        assert 0 < ready_s < over_http.READY_WITHIN_S
        for task, name in ((Task.CLASSIFICATION, "colours"), (Task.SEGMENTATION, "road")):
            assert over_http.requests_per_second(port, task, name, 0.2) > 0
        assert over_http.requests_per_second(port, Task.SEGMENTATION, "colours", 0.2) == 0  # 4xx is no answer
    assert not over_http._is_ready(port)


def test_a_service_that_does_not_start_is_an_error(models: Path) -> None:
    bench = Bench(settings=Settings(models_dir=models / "none"))
    with (
        pytest.raises(RuntimeError, match="the service on cpu is not ready"),
        over_http.running(bench, Device.CPU),
    ):
        pass


@pytest.mark.parametrize(("ready_s", "verdict"), [(9.0, Verdict.OK), (121.0, Verdict.FAILED)])
def test_cold_start_is_judged_and_rates_are_compared(
    models: Path, monkeypatch: pytest.MonkeyPatch, ready_s: float, verdict: Verdict
) -> None:
    device_of_port = {1: Device.CUDA, 2: Device.CPU}

    @contextmanager
    def running(_: Bench, device: Device) -> Iterator[tuple[int, float]]:
        yield next(port for port, its in device_of_port.items() if its is device), ready_s

    def rate(port: int, task: Task, _: str) -> float:
        return {Device.CUDA: 300.0, Device.CPU: 100.0}[device_of_port[port]]

    monkeypatch.setattr(over_http, "running", running)
    monkeypatch.setattr(over_http, "requests_per_second", rate)
    cold, *rates = over_http.check_service(Bench(settings=Settings(models_dir=models)))
    assert (cold.name, cold.verdict) == ("cold start", verdict)
    assert [row.found for row in rates] == ["300 on the GPU, 100 on the CPU (3.00 times)"] * 2

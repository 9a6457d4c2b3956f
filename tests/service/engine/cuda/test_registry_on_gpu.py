"""The registry with models on a GPU: a rescan never moves one to the CPU, and idle ones are checked."""

import asyncio
import os
from pathlib import Path

import pytest

from quatserve.service.engine.load import load_model
from quatserve.service.engine.registry import IDLE_CHECK_S, Registry
from quatserve.service.engine.session import CPU, CUDA
from quatserve.service.errors import DeviceUnavailableError
from quatserve.service.settings import Device, Settings
from tests.service.artifacts import CLASSIFIER, write_classifier
from tests.service.engine.cuda.cuda_on_cpu import LOST, CudaOnCpu

AUTO = Settings(device=Device.AUTO, max_batch=4, max_batch_s=60, threads=1)


def started(root: Path, settings: Settings = AUTO) -> Registry:
    registry = Registry(settings.model_copy(update={"models_dir": root}))
    registry.start()
    return registry


def served(registry: Registry) -> list[tuple[str, int, str]]:
    models = [loaded.model for loaded in registry.loaded()]
    return [(m.description.name, m.description.version, m.provider) for m in models]


def test_with_cuda_a_gpu_that_fails_at_the_start_is_fatal(tmp_path: Path, gpu: type[CudaOnCpu]) -> None:
    write_classifier(tmp_path)
    gpu.failures[1] = LOST
    with pytest.raises(DeviceUnavailableError, match="device cuda: the GPU or its context is lost"):
        started(tmp_path, AUTO.model_copy(update={"device": Device.CUDA}))


def test_a_rescan_does_not_move_a_model_from_the_gpu_to_the_cpu(tmp_path: Path, gpu: type[CudaOnCpu]) -> None:
    async def test() -> None:
        write_classifier(tmp_path)
        registry = started(tmp_path)
        assert served(registry) == [(CLASSIFIER, 1, CUDA)]
        write_classifier(tmp_path, 2)
        write_classifier(tmp_path, name="another")
        gpu.failures[1] = LOST
        await registry.rescan()
        assert served(registry) == [(CLASSIFIER, 1, CUDA)]
        assert sorted((r.name, r.version) for r in registry.refused) == [("another", 1), (CLASSIFIER, 2)]
        assert all("the GPU or its context is lost" in refusal.reason for refusal in registry.refused)
        await registry.close()

    asyncio.run(test())


def test_what_took_the_cpu_at_the_start_may_take_it_again(tmp_path: Path, gpu: type[CudaOnCpu]) -> None:
    async def test() -> None:
        write_classifier(tmp_path)
        gpu.failures[1] = LOST
        registry = started(tmp_path)
        write_classifier(tmp_path, 2)
        write_classifier(tmp_path, name="another")
        await registry.rescan()
        assert served(registry) == [("another", 1, CPU), (CLASSIFIER, 2, CPU)]
        await registry.close()

    asyncio.run(test())


def test_models_on_a_gpu_are_checked_while_idle_and_those_on_a_cpu_are_not(
    tmp_path: Path, gpu: type[CudaOnCpu]
) -> None:
    write_classifier(tmp_path)
    (on_gpu,) = started(tmp_path).loaded()
    (on_cpu,) = started(tmp_path, AUTO.model_copy(update={"device": Device.CPU})).loaded()
    assert on_gpu.batcher._limits.idle_check_s == IDLE_CHECK_S
    assert on_cpu.batcher._limits.idle_check_s is None


def test_a_thread_that_launches_kernels_keeps_its_priority(tmp_path: Path, gpu: type[CudaOnCpu]) -> None:
    """It stands above the threads that decode."""
    model = load_model(write_classifier(tmp_path), AUTO)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    model.prepare_thread()
    assert os.getpriority(os.PRIO_PROCESS, 0) == before

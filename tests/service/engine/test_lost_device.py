"""A device that fails, at once or while nobody uses it: the batcher checks the model, and gives up."""

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quatserve.service.engine.admission import Limits
from quatserve.service.engine.batcher import Batcher
from quatserve.service.errors import BatcherClosedError, DeviceFailedError, RunFailedError

Image = NDArray[np.uint8]
LIMITS = Limits(max_batch=4, queue_images=8, queue_timeout_s=5.0, stuck_after_s=0.1)
OFTEN = dataclasses.replace(LIMITS, idle_check_s=0.02)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))


async def submit(batcher: Batcher) -> None:
    with batcher.admit(1):
        await batcher.infer([np.zeros((2, 2, 3), np.uint8)])


class Device:
    """A model that runs while its device is there."""

    def __init__(self) -> None:
        self.lost = False
        self.checks = threading.Semaphore(0)

    def __call__(self, images: Image) -> Image:
        if self.lost:
            raise DeviceFailedError("the GPU or its context is lost")
        return images

    def check(self) -> None:
        self.checks.release()
        self(np.zeros((1, 2, 2, 3), np.uint8))


def test_one_failure_of_the_device_ends_the_model() -> None:
    async def test() -> None:
        device, stuck = Device(), asyncio.Event()
        batcher = Batcher(device, LIMITS, check=device.check, on_stuck=stuck.set)
        await submit(batcher)
        device.lost = True
        with pytest.raises(RunFailedError, match="DeviceFailedError: the GPU or its context is lost"):
            await submit(batcher)
        await asyncio.wait_for(stuck.wait(), 5)
        with pytest.raises(BatcherClosedError):
            await submit(batcher)
        await batcher.close()

    run(test)


def test_a_device_that_recovers_goes_on() -> None:
    """Such as one without memory for a single run: the probe passes."""

    async def test() -> None:
        device, reports = Device(), list[int]()
        batcher = Batcher(device, LIMITS, check=device.checks.release, on_stuck=lambda: reports.append(1))
        device.lost = True
        with pytest.raises(RunFailedError):
            await submit(batcher)
        assert await asyncio.to_thread(device.checks.acquire, True, 5)
        device.lost = False
        await submit(batcher)
        assert reports == []
        await batcher.close()

    run(test)


def test_an_idle_device_is_checked_before_the_first_image_too() -> None:
    async def test() -> None:
        device, stuck = Device(), asyncio.Event()
        batcher = Batcher(device, OFTEN, check=device.check, on_stuck=stuck.set)
        batcher.start()
        for _ in range(3):
            assert await asyncio.to_thread(device.checks.acquire, True, 5)
        await submit(batcher)
        assert not stuck.is_set()
        device.lost = True
        await asyncio.wait_for(stuck.wait(), 5)
        await batcher.close()

    run(test)


def test_an_idle_check_that_does_not_return_ends_the_model() -> None:
    async def test() -> None:
        stuck, go_on = asyncio.Event(), threading.Event()
        batcher = Batcher(lambda images: images, OFTEN, check=lambda: go_on.wait(10), on_stuck=stuck.set)
        batcher.start()
        await asyncio.wait_for(stuck.wait(), 5)
        go_on.set()
        await batcher.close()

    run(test)


def test_without_idle_checks_an_idle_model_is_left_alone() -> None:
    async def test() -> None:
        device = Device()
        batcher = Batcher(device, LIMITS, check=device.check)
        batcher.start()
        assert not await asyncio.to_thread(device.checks.acquire, True, 0.2)
        await batcher.close()

    run(test)


def test_a_thread_that_cannot_be_prepared_ends_the_model() -> None:
    """Such as a CUDA graph that cannot be captured."""

    async def test() -> None:
        def prepare() -> None:
            raise DeviceFailedError("no graph")

        stuck = asyncio.Event()
        batcher = Batcher(lambda images: images, LIMITS, on_start=prepare, on_stuck=stuck.set)
        with pytest.raises(RunFailedError, match="the thread cannot start: DeviceFailedError: no graph"):
            await submit(batcher)
        await asyncio.wait_for(stuck.wait(), 5)
        await batcher.close()

    run(test)

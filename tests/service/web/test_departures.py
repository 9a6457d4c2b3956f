"""A disconnected client is noticed whatever it sent, and all memory of its request is freed."""

import asyncio
import gc
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from quatserve.service.artifact import Resize
from quatserve.service.engine.admission import Limits
from quatserve.service.engine.batcher import Batcher
from quatserve.service.engine.padding import Images
from quatserve.service.errors import ClientGoneError, UnreadableImageError
from quatserve.service.imaging.decoder import Decoder, PixelBudget
from quatserve.service.imaging.images import Target
from quatserve.service.web.lifecycle import Departure
from tests.service.conftest import Start
from tests.service.harness import plain
from tests.service.web.test_faults import GOOD, PROGRAM, Busy, images_run, raw_request, wait_for_admitted

TARGET = Target(32, 32, Resize.STRETCH)
LIMITS = Limits(max_batch=1, queue_images=8, queue_timeout_s=10, stuck_after_s=10)


def test_images_of_clients_that_disconnect_after_a_large_upload_are_not_run(
    start: Start, models_dir: Path
) -> None:
    """uvicorn stops reading beyond 64 kB, and then does not see the disconnect."""
    running = start(program=PROGRAM, max_batch=4, deadline_s=15, queue_timeout_s=15)
    busy = Busy(running, models_dir)
    leaving = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(3)]
    for connection in leaving:
        connection.sendall(raw_request(GOOD + bytes(8_000_000)))
    wait_for_admitted(running, 4)
    for connection in leaving:
        connection.close()
    wait_for_admitted(running, 1)
    assert busy.free().status_code == 200
    assert images_run(running) == 1


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Objects must be freed by their reference counts, without the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_nothing_is_kept_in_memory_for_a_caller_that_left(no_collector: None) -> None:
    free = threading.Event()
    first, gone = np.zeros((4, 4, 3), np.uint8), np.ones((4, 4, 3), np.uint8)
    upload = bytearray(100)  # stands for the memory of a request

    def run(images: Images) -> Images:
        free.wait(10)
        return images

    async def ask(batcher: Batcher, departure: Departure, held: bytearray) -> None:
        with pytest.raises(ClientGoneError):
            await batcher.infer([gone], departure.watch)
        assert len(held) == 100

    async def scenario() -> int:
        batcher, departure = Batcher(run, LIMITS), Departure()
        busy = asyncio.create_task(batcher.infer([first]))
        leaving = asyncio.create_task(ask(batcher, departure, upload))
        await asyncio.sleep(0.05)
        departure.happened()
        await leaving
        del leaving
        held = sys.getrefcount(upload)  # while the other request still runs
        free.set()
        await busy
        await batcher.close()
        return held

    before = sys.getrefcount(upload)
    assert asyncio.run(scenario()) == before


def test_the_files_of_a_refused_form_are_freed_at_once(no_collector: None) -> None:
    files = [plain((1, 2, 3)) + bytes(100), b"junk" + bytes(100)]

    async def refused(pool: Executor) -> None:
        decoder = Decoder(pool, 10_000, PixelBudget(10_000, patience_s=10))
        with pytest.raises(UnreadableImageError):
            await decoder.prepare(list(files), TARGET, Departure())

    before = [sys.getrefcount(data) for data in files]
    with ThreadPoolExecutor(1) as pool:
        asyncio.run(refused(pool))
    assert [sys.getrefcount(data) for data in files] == before

"""Which images are decoded on the event loop, and how many pixels are decoded at the same time."""

import asyncio
import re
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quatserve.service.artifact import Resize
from quatserve.service.errors import ClientGoneError, DeadlineExceededError
from quatserve.service.imaging.decoder import LARGEST_AT_ONCE, TINY_BYTES, Decoder, PixelBudget
from quatserve.service.imaging.images import Target
from quatserve.service.imaging.render import Output
from quatserve.service.settings import Settings
from quatserve.service.telemetry.metrics import Metrics
from quatserve.service.web.inference import Inference
from quatserve.service.web.lifecycle import Departure
from quatserve.service.web.parameters import SegmentParameters
from tests.service.conftest import Start
from tests.service.harness import RunningService, encoded, noise, plain, wait_until
from tests.service.image_files import png_chunk, png_file, run_length_bmp

TARGET = Target(32, 32, Resize.STRETCH)
PACKED = zlib.compress(bytes(1 << 20))  # a kilobyte
ROWS = bytes(33 * 32)
CHUNKS = {
    b"zTXt": b"words\0\0" + PACKED,
    b"iTXt": b"words\0\1\0\0\0" + PACKED,
    b"iCCP": b"profile\0\0" + PACKED,
}


class CountedPool(ThreadPoolExecutor):
    jobs = 0

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> "Future[Any]":
        self.jobs += 1
        return super().submit(call, *arguments, **named)


@pytest.fixture
def pool() -> Iterator[CountedPool]:
    with CountedPool(1) as made:
        yield made


def decode(pool: CountedPool, data: bytes) -> tuple[int, int]:
    decoder = Decoder(pool, 1 << 20, PixelBudget(1 << 20, patience_s=10))
    return asyncio.run(decoder.prepare([data], TARGET, Departure()))[0].size


def test_a_tiny_image_is_decoded_without_a_thread(pool: CountedPool) -> None:
    assert decode(pool, plain((1, 2, 3))) == (32, 32)
    assert pool.jobs == 0


@pytest.mark.parametrize("name", CHUNKS)
def test_a_small_file_that_unpacks_to_megabytes_goes_to_a_thread(pool: CountedPool, name: bytes) -> None:
    data = png_file(32, 32, 8, 0, ROWS, png_chunk(name, CHUNKS[name]) * 10)
    assert len(data) < TINY_BYTES
    assert decode(pool, data) == (32, 32)
    assert pool.jobs == 1


def test_run_lengths_always_go_to_a_thread(pool: CountedPool) -> None:
    """Pillow decodes them in Python: ten milliseconds for an image that is tiny otherwise."""
    assert decode(pool, encoded(noise(32, 32), "BMP")) == (32, 32)
    assert pool.jobs == 0
    assert decode(pool, run_length_bmp(32, 32)) == (32, 32)
    assert pool.jobs == 1


# --- memory ---

SIDE = 4096
CLEAR = png_chunk(b"PLTE", bytes(6)) + png_chunk(b"tRNS", b"\x80")


def peak_bytes(running: RunningService) -> int:
    """The peak of the process's memory."""
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


@pytest.mark.parametrize(
    ("depth", "colour", "extra", "row_bytes", "bytes_per_pixel"),
    [(1, 3, CLEAR, 1 + SIDE // 8, 1 + 4), (8, 6, b"", 1 + 4 * SIDE, 4 + 4)],
    ids=["palette", "rgba"],
)
def test_transparency_needs_memory_for_two_copies_only(
    start: Start, depth: int, colour: int, extra: bytes, row_bytes: int, bytes_per_pixel: int
) -> None:
    running, data = start(), png_file(SIDE, SIDE, depth, colour, bytes(SIDE * row_bytes), extra)
    before = peak_bytes(running)
    assert running.client.post("/classify", files={"file": data}).status_code == 200
    assert peak_bytes(running) - before < (bytes_per_pixel + 1) * SIDE**2


def test_an_image_waits_until_its_pixels_fit() -> None:
    async def test(pool: ThreadPoolExecutor) -> None:
        budget, departure = PixelBudget(10_000, patience_s=10), Departure()
        decoder = Decoder(pool, 10_000, budget)
        with budget.hold((100, 1), departure):
            whole = asyncio.create_task(decoder.prepare([plain((1, 2, 3), (100, 100))], TARGET, departure))
            done, _ = await asyncio.wait([whole], timeout=0.2)
            assert not done
            assert (await decoder.prepare([plain((1, 2, 3))], TARGET, departure))[0].size == (32, 32)  # tiny
        assert (await whole)[0].size == (100, 100)

    with ThreadPoolExecutor(4) as pool:
        asyncio.run(test(pool))


def test_so_does_a_picture_to_be_drawn() -> None:
    async def test(pool: ThreadPoolExecutor) -> None:
        inference = Inference(Settings(max_image_pixels=2500), Metrics(), pool)
        overlay = SegmentParameters(output=Output.OVERLAY)
        road, photo = np.zeros((8, 8), np.uint8), plain((1, 2, 3), (50, 50))
        with inference._budget.hold((LARGEST_AT_ONCE * 50, 50), Departure()):
            drawing = asyncio.create_task(inference.draw(road, (50, 50), overlay, photo, Departure()))
            done, _ = await asyncio.wait([drawing], timeout=0.2)
            assert not done
        assert (await drawing)[1] == 0

    with ThreadPoolExecutor(4) as pool:
        asyncio.run(test(pool))


def test_small_images_cannot_starve_a_large_one() -> None:
    budget, order = PixelBudget(100, patience_s=10), list[str]()

    def take(name: str, pixels: int) -> None:
        with budget.hold((pixels, 1), Departure()):
            order.append(name)

    with ThreadPoolExecutor(4) as pool, budget.hold((50, 1), Departure()):
        pool.submit(take, "large", 100)
        wait_until(budget._turn.locked)
        pool.submit(take, "small", 10)  # it would fit
        time.sleep(0.1)
        assert order == []
    assert order == ["large", "small"]


def test_waiting_ends_at_the_deadline_or_when_the_client_leaves() -> None:
    budget, left = PixelBudget(100, patience_s=0.1), Departure()
    left.gone = True
    with budget._turn, pytest.raises(DeadlineExceededError), budget.hold((1, 1), Departure()):
        pass  # another waits ahead of it, for longer
    with budget.hold((100, 1), Departure()):
        with pytest.raises(DeadlineExceededError), budget.hold((1, 1), Departure()):
            pass
        with pytest.raises(ClientGoneError), budget.hold((1, 1), left):
            pass
    with budget.hold((100, 1), Departure()):  # every pixel was returned
        pass

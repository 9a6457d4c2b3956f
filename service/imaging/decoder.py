"""Where images are decoded: tiny ones on the event loop, the others on a few threads beside it."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass

from PIL import Image

from quatserve.service.errors import ClientGoneError, DeadlineExceededError, ImageError
from quatserve.service.imaging.images import Pixels, Target, fit, upright_rgb
from quatserve.service.imaging.inspect import PACKED_CHUNKS, in_run_lengths, open_header
from quatserve.service.web.lifecycle import Departure

# Below these a thread hop costs more than the decoding, and the loop is held for a fraction of a millisecond:
# but not by a PNG with packed chunks, which Pillow unpacks with the header, to a megabyte each.
TINY_BYTES = 16 * 1024
TINY_PIXELS = 64 * 64
LARGEST_AT_ONCE = 4  # of the largest images, decoded beside each other: 4 to 17 bytes a pixel, by kind


@dataclass(frozen=True, slots=True)
class Prepared:
    """The network's input, and (width, height) of the upright image it came from."""

    pixels: Pixels
    size: tuple[int, int]


def _finish(image: Image.Image, target: Target) -> Prepared:
    rgb = upright_rgb(image)
    return Prepared(fit(rgb, target), rgb.size)


def prepare(data: bytes, target: Target, max_pixels: int) -> Prepared:
    """From a file to the network, all at once."""
    return _finish(open_header(data, max_pixels), target)


class PixelBudget:
    """Pixels that all threads together may hold; one that finds no room waits, in the order of arrival."""

    def __init__(self, pixels: int, patience_s: float) -> None:
        self._free, self._patience_s = pixels, patience_s
        self._turn, self._changed = threading.Lock(), threading.Condition()

    @contextmanager
    def hold(self, size: tuple[int, int], departure: Departure) -> Iterator[None]:
        """Room for an image of this (width, height), or an error where nobody waits for it any longer."""
        pixels, late = size[0] * size[1], time.monotonic() + self._patience_s
        in_time = self._turn.acquire(timeout=self._patience_s)  # or small ones pass by a large one for ever
        self._check(in_time)
        try:
            with self._changed:
                left_s = late - time.monotonic()
                in_time = self._changed.wait_for(lambda: departure.gone or self._free >= pixels, left_s)
                self._check(in_time)
                if departure.gone:
                    raise ClientGoneError("the client left before the turn of its image")
                self._free -= pixels
        finally:
            self._turn.release()
        try:
            yield
        finally:
            with self._changed:
                self._free += pixels
                self._changed.notify()

    def _check(self, in_time: bool) -> None:
        if not in_time:
            raise DeadlineExceededError(f"no room for an image within {self._patience_s:g} s")


class Decoder:
    """Prepares the images of a request; the first bad one fails it, by index."""

    def __init__(self, pool: Executor, max_pixels: int, budget: PixelBudget) -> None:
        self._pool, self._max_pixels, self._budget = pool, max_pixels, budget

    async def prepare(self, files: Sequence[bytes], target: Target, departure: Departure) -> list[Prepared]:
        if len(files) == 1:
            return [await self._one(files[0], target, departure)]
        jobs = [self._one(data, target, departure) for data in files]
        results = await asyncio.gather(*jobs, return_exceptions=True)
        for index, result in enumerate(results):
            if isinstance(result, ImageError):
                result.index = index
            if isinstance(result, BaseException):
                try:
                    raise result
                finally:  # an error leads to this frame: with it in here, the files wait for the collector
                    del result, results
        return [result for result in results if isinstance(result, Prepared)]

    async def _one(self, data: bytes, target: Target, departure: Departure) -> Prepared:
        if len(data) <= TINY_BYTES and not any(name in data for name in PACKED_CHUNKS):
            image = open_header(data, self._max_pixels)
            if image.width * image.height <= TINY_PIXELS and not in_run_lengths(image):
                return _finish(image, target)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._in_turn, data, target, departure)

    def _in_turn(self, data: bytes, target: Target, departure: Departure) -> Prepared:
        image = open_header(data, self._max_pixels)
        with self._budget.hold(image.size, departure):
            return _finish(image, target)

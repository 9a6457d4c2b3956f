"""Decodes tiny images on the event loop, and all others on a pool of threads within a memory budget."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from PIL import Image

from quatserve.service.errors import ClientGoneError, DeadlineExceededError, ImageError
from quatserve.service.imaging.images import Pixels, Target, resize, upright_rgb
from quatserve.service.imaging.inspect import PACKED_CHUNKS, in_run_lengths, open_header

# Below both limits, decoding takes a fraction of a millisecond, less than handing the work to a thread.
# Packed PNG chunks are the exception: Pillow unpacks each of them, up to a megabyte, with the header.
TINY_BYTES = 16 * 1024
TINY_PIXELS = 64 * 64
LARGEST_AT_ONCE = 4  # images of the maximum size decoded concurrently, at 4 to 17 bytes per pixel


class Caller(Protocol):
    """The client whose image is decoded."""

    @property
    def gone(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """The network's input, and (width, height) of the upright image it came from."""

    pixels: Pixels
    size: tuple[int, int]


def _finish(image: Image.Image, target: Target) -> Prepared:
    rgb = upright_rgb(image)
    return Prepared(resize(rgb, target), rgb.size)


def prepare(data: bytes, target: Target, max_pixels: int) -> Prepared:
    """From the bytes of a file to the network's input, on the calling thread."""
    return _finish(open_header(data, max_pixels), target)


class PixelBudget:
    """Bounds the pixels that all threads hold together; images that do not fit wait in order of arrival."""

    def __init__(self, pixels: int, patience_s: float) -> None:
        self._free, self._patience_s = pixels, patience_s
        self._turn, self._changed = threading.Lock(), threading.Condition()

    @contextmanager
    def hold(self, size: tuple[int, int], caller: Caller) -> Iterator[None]:
        """Reserve room for an image of this (width, height); raise if it is late or the caller is gone."""
        pixels, late = size[0] * size[1], time.monotonic() + self._patience_s
        in_time = self._turn.acquire(timeout=self._patience_s)  # small images must not starve a large one
        self._check(in_time)
        try:
            with self._changed:
                left_s = late - time.monotonic()
                in_time = self._changed.wait_for(lambda: caller.gone or self._free >= pixels, left_s)
                self._check(in_time)
                if caller.gone:
                    raise ClientGoneError("the client left before its image was decoded")
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
    """Prepares the images of a request; the first bad one fails the request, with its index in the error."""

    def __init__(self, pool: Executor, max_pixels: int, budget: PixelBudget) -> None:
        self._pool, self._max_pixels, self._budget = pool, max_pixels, budget

    async def prepare(self, files: Sequence[bytes], target: Target, caller: Caller) -> list[Prepared]:
        if len(files) == 1:
            return [await self._one(files[0], target, caller)]
        jobs = [self._one(data, target, caller) for data in files]
        results = await asyncio.gather(*jobs, return_exceptions=True)
        for index, result in enumerate(results):
            if isinstance(result, ImageError):
                result.index = index
            if isinstance(result, BaseException):
                try:
                    raise result
                finally:  # the traceback holds this frame, and a cycle would keep the files in memory
                    del result, results
        return [result for result in results if isinstance(result, Prepared)]

    async def _one(self, data: bytes, target: Target, caller: Caller) -> Prepared:
        if len(data) <= TINY_BYTES and not any(name in data for name in PACKED_CHUNKS):
            image = open_header(data, self._max_pixels)
            if image.width * image.height <= TINY_PIXELS and not in_run_lengths(image):
                return _finish(image, target)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._on_thread, data, target, caller)

    def _on_thread(self, data: bytes, target: Target, caller: Caller) -> Prepared:
        image = open_header(data, self._max_pixels)
        with self._budget.hold(image.size, caller):
            return _finish(image, target)

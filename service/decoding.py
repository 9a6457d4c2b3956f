"""Where images are decoded: tiny ones on the event loop, the others on a few threads beside it."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from PIL import Image

from service.images import ImageError, Pixels, Target, fit, open_header, upright_rgb
from service.lifecycle import Departure
from service.problems import ClientGoneError

# Below these a thread hop costs more than the decoding, and the loop is held for a fraction of a millisecond:
# but not by a PNG with one of these chunks, which Pillow unpacks with the header, to a megabyte each.
TINY_BYTES = 16 * 1024
TINY_PIXELS = 64 * 64
PACKED_CHUNKS = (b"zTXt", b"iTXt", b"iCCP")


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


def _prepare_unless_gone(data: bytes, target: Target, max_pixels: int, departure: Departure) -> Prepared:
    if departure.gone:  # its turn came too late
        raise ClientGoneError("the client left before decoding")
    return prepare(data, target, max_pixels)


class Decoder:
    """Prepares the images of a request; the first bad one fails it, by index."""

    def __init__(self, pool: Executor, max_pixels: int) -> None:
        self._pool, self._max_pixels = pool, max_pixels

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
            if image.width * image.height <= TINY_PIXELS:
                return _finish(image, target)
        arguments = (data, target, self._max_pixels, departure)
        return await asyncio.get_running_loop().run_in_executor(self._pool, _prepare_unless_gone, *arguments)

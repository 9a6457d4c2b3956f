"""Where an image is decoded: on the event loop only what cannot hold it up."""

import asyncio
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from service.artifact import Resize
from service.decoding import TINY_BYTES, Decoder
from service.images import Target
from service.lifecycle import Departure
from tests.service.harness import plain
from tests.service.test_images import png_chunk, png_file

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
    return asyncio.run(Decoder(pool, 1 << 20).prepare([data], TARGET, Departure()))[0].size


def test_a_tiny_image_needs_no_thread(pool: CountedPool) -> None:
    assert decode(pool, plain((1, 2, 3))) == (32, 32)
    assert pool.jobs == 0


@pytest.mark.parametrize("name", CHUNKS)
def test_a_small_file_that_unpacks_to_megabytes_goes_to_one(pool: CountedPool, name: bytes) -> None:
    data = png_file(32, 32, 8, 0, ROWS, png_chunk(name, CHUNKS[name]) * 10)
    assert len(data) < TINY_BYTES
    assert decode(pool, data) == (32, 32)
    assert pool.jobs == 1

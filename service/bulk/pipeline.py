"""Files in, results out: each thread takes one batch from its files to its results, in bounded memory."""

import math
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future
from contextlib import nullcontext
from dataclasses import dataclass
from threading import Event, Lock
from typing import Any, TypeVar

from numpy.typing import NDArray

from quatserve.service.bulk.files import InputFile
from quatserve.service.engine.load import Model
from quatserve.service.engine.padding import padded
from quatserve.service.engine.session import CUDA, first_line
from quatserve.service.errors import ImageError
from quatserve.service.imaging.decoder import Prepared, prepare
from quatserve.service.imaging.images import Target

MAX_BYTES_PER_PIXEL = 8  # uncompressed 16-bit RGBA, the largest pixel of any format
HEAD_BYTES = 1 << 20
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class SkippedFile:
    file: InputFile
    reason: str


@dataclass(frozen=True, slots=True)
class PreparedFile:
    file: InputFile
    prepared: Prepared


@dataclass(frozen=True, slots=True)
class FileResult:
    """The network's row for a file, and the (width, height) of its upright image."""

    file: InputFile
    size: tuple[int, int]
    row: NDArray[Any]


def read(path: str, max_pixels: int) -> bytes:
    """The bytes of a regular file; raise if it is larger than an image of `max_pixels` can be."""
    with open(path, "rb", opener=_open_without_waiting) as stream:  # Path.open takes no opener
        state = os.fstat(stream.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise ImageError("not a regular file")
        limit = MAX_BYTES_PER_PIXEL * max_pixels + HEAD_BYTES
        if state.st_size > limit:
            raise ImageError(f"{state.st_size:,} bytes; the limit is {limit:,}")
        return stream.read()


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a pipe without a writer would block forever


def prepare_file(file: InputFile, target: Target, max_pixels: int) -> PreparedFile | SkippedFile:
    try:
        return PreparedFile(file, prepare(read(file.path, max_pixels), target, max_pixels))
    except ImageError as error:
        return SkippedFile(file, str(error))
    except OSError as error:
        return SkippedFile(file, error.strerror or type(error).__name__)
    except ValueError as error:  # a zero byte in the name
        return SkippedFile(file, str(error))


def map_in_order(pool: Executor, work: Callable[[T], R], items: Iterable[T], ahead: int) -> Iterator[R]:
    """Yield `work(item)` for each item, in order. At most `ahead` items are submitted in advance."""
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def process(
    model: Model,
    files: Sequence[InputFile],
    max_pixels: int,
    pool: Executor,
    threads: int,
    finish: Callable[[FileResult], R | SkippedFile],
) -> Iterator[list[R | SkippedFile]]:
    """Yield what `finish` returns for each file, in order, by batch. The pool has this number of threads.

    On a CPU each thread runs the network on a batch of its own: in a run shared by all threads, they would
    wait for the one that is still decoding. On a GPU one thread runs while the others decode.
    """
    target = Target.of(model.description)
    one_at_a_time, stopped = Lock() if model.provider == CUDA else nullcontext(), Event()

    def work(batch: Sequence[InputFile]) -> list[R | SkippedFile]:
        loaded = [prepare_file(file, target, max_pixels) for file in _until(stopped, batch)]
        with one_at_a_time:
            results = _run(model, loaded)
        return [item if isinstance(item, SkippedFile) else finish(item) for item in _until(stopped, results)]

    size = max(1, min(model.max_batch, math.ceil(len(files) / threads)))
    batches = (files[start : start + size] for start in range(0, len(files), size))
    try:
        yield from map_in_order(pool, work, batches, 2 * threads)
    finally:
        stopped.set()


def _until(stopped: Event, items: Iterable[T]) -> Iterator[T]:
    """Check for the stop between items: a batch of large photos takes seconds."""
    for item in items:
        if stopped.is_set():
            raise CancelledError
        yield item


def _run(model: Model, batch: list[PreparedFile | SkippedFile]) -> list[FileResult | SkippedFile]:
    results = iter(_run_prepared(model, [item for item in batch if isinstance(item, PreparedFile)]))
    return [item if isinstance(item, SkippedFile) else next(results) for item in batch]


def _run_prepared(model: Model, batch: list[PreparedFile]) -> list[FileResult | SkippedFile]:
    """Run the batch; if the run fails, run each image alone, so that one image cannot spoil the others."""
    if not batch:
        return []
    try:
        rows = model.session.run(padded([item.prepared.pixels for item in batch], model.buckets))
    except Exception as error:  # noqa: BLE001  # onnxruntime raises many types
        if len(batch) == 1:
            return [SkippedFile(batch[0].file, f"the network failed: {first_line(error)}")]
        return [result for item in batch for result in _run_prepared(model, [item])]
    pairs = zip(batch, rows, strict=False)  # drops the rows of the padding
    return [FileResult(item.file, item.prepared.size, row) for item, row in pairs]

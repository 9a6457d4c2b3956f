"""Files in, results out: each thread takes a batch from its files to its results, in bounded memory."""

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

from quatserve.service.bulk.files import Found
from quatserve.service.engine.load import Model
from quatserve.service.engine.padding import padded
from quatserve.service.engine.session import CUDA, first_line
from quatserve.service.errors import ImageError
from quatserve.service.imaging.decoder import Prepared, prepare
from quatserve.service.imaging.images import Target

MAX_BYTES_PER_PIXEL = 8  # 16-bit colour with alpha, not compressed: no file need be larger
HEAD_BYTES = 1 << 20
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Fault:
    """A file that was skipped, and why."""

    file: Found
    reason: str


@dataclass(frozen=True, slots=True)
class Loaded:
    file: Found
    prepared: Prepared


@dataclass(frozen=True, slots=True)
class Answer:
    """The network's row for a file whose upright image has this (width, height)."""

    file: Found
    size: tuple[int, int]
    row: NDArray[Any]


def read(path: str, max_pixels: int) -> bytes:
    """The bytes of a regular file that is no larger than an image may be."""
    with open(path, "rb", opener=_open_without_waiting) as stream:  # Path.open has no opener
        state = os.fstat(stream.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise ImageError("not a file")
        limit = MAX_BYTES_PER_PIXEL * max_pixels + HEAD_BYTES
        if state.st_size > limit:
            raise ImageError(f"{state.st_size:,} bytes; at most {limit:,} are taken")
        return stream.read()


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe nobody writes to would hold us for ever


def load(file: Found, target: Target, max_pixels: int) -> Loaded | Fault:
    try:
        return Loaded(file, prepare(read(file.path, max_pixels), target, max_pixels))
    except ImageError as error:
        return Fault(file, str(error))
    except OSError as error:
        return Fault(file, error.strerror or type(error).__name__)
    except ValueError as error:  # a name with a zero byte in it
        return Fault(file, str(error))


def in_order(pool: Executor, work: Callable[[T], R], items: Iterable[T], ahead: int) -> Iterator[R]:
    """`work(item)` of each item, in order; at most `ahead` are begun before they are asked for."""
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


def outcomes(
    model: Model,
    files: Sequence[Found],
    max_pixels: int,
    pool: Executor,
    threads: int,
    finish: Callable[[Answer], R | Fault],
) -> Iterator[list[R | Fault]]:
    """What became of each file, in order, a batch at a time, by the `threads` of the pool.

    On a CPU each of them runs the network on its own batch: threads that share a run wait for the one that
    decoding holds up. A GPU makes one run at a time, while the other threads decode.
    """
    target = Target.of(model.description)
    turn, over = Lock() if model.provider == CUDA else nullcontext(), Event()

    def work(batch: Sequence[Found]) -> list[R | Fault]:
        loaded = [load(file, target, max_pixels) for file in _unless(over, batch)]
        with turn:
            answered = _run(model, loaded)
        return [item if isinstance(item, Fault) else finish(item) for item in _unless(over, answered)]

    size = max(1, min(model.max_batch, math.ceil(len(files) / threads)))
    batches = (files[start : start + size] for start in range(0, len(files), size))
    try:
        yield from in_order(pool, work, batches, 2 * threads)
    finally:
        over.set()


def _unless(over: Event, items: Iterable[T]) -> Iterator[T]:
    """One by one, while somebody wants them: a batch of large photos takes seconds."""
    for item in items:
        if over.is_set():
            raise CancelledError
        yield item


def _run(model: Model, batch: list[Loaded | Fault]) -> list[Answer | Fault]:
    answers = iter(_answers(model, [item for item in batch if isinstance(item, Loaded)]))
    return [item if isinstance(item, Fault) else next(answers) for item in batch]


def _answers(model: Model, batch: list[Loaded]) -> list[Answer | Fault]:
    """From one run; where it fails, from one for each image: one of them must not spoil the others."""
    if not batch:
        return []
    try:
        rows = model.session.run(padded([item.prepared.pixels for item in batch], model.buckets))
    except Exception as error:  # noqa: BLE001  # onnxruntime raises what it likes
        if len(batch) == 1:
            return [Fault(batch[0].file, f"the network failed: {first_line(error)}")]
        return [answer for item in batch for answer in _answers(model, [item])]
    pairs = zip(batch, rows, strict=False)  # the rows of the padding are dropped
    return [Answer(item.file, item.prepared.size, row) for item, row in pairs]

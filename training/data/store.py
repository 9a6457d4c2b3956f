"""Images decoded once, by all cores, into uint8 arrays on disk that every process of a run maps.

A hundred thousand photographs fit no memory. As files that are mapped they need none of their own: the
system keeps the pages that are in use and drops the others. The processes that decode do not import torch.
"""

import hashlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from tqdm import tqdm

from quatserve.service.imaging.images import ImageError, Resize, Target, decode, resize
from quatserve.training.errors import UserError

MAX_PIXELS = 100_000_000
CHUNK = 32  # images for one task of a process
WORTH_STARTING = 5  # chunks: fewer are decoded before a process has started
ENLARGEMENT = 4  # an image whose shorter side would be enlarged by more is tiny
FORMATS = "JPEG, PNG, WebP and BMP"

Pixels = NDArray[np.uint8]
Reader = Callable[[Sequence[Path]], tuple[str, Sequence[Pixels]]]
"""The files of one example -> the digest of their bytes, and their pixels; a `BadImageError` is its fault."""


class BadImageError(Exception):
    """An image that cannot be trained on; it is skipped by this name."""


@dataclass(frozen=True)
class Outcome:
    sha256: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Photographs:
    """Reads a photograph as the service does: upright, RGB, its centre square or all of it, to a size."""

    height: int
    width: int
    square: bool
    least: int = 1  # of its shorter side

    def __call__(self, files: Sequence[Path]) -> tuple[str, Sequence[Pixels]]:
        data = files[0].read_bytes()
        return hashlib.sha256(data).hexdigest(), [self.pixels(data)[0]]

    def pixels(self, data: bytes) -> tuple[Pixels, tuple[int, int]]:
        """At the network's size, and the (width, height) that it had when upright."""
        try:
            rgb = decode(data, MAX_PIXELS)
        except ImageError as error:
            raise BadImageError(str(error)) from error
        if min(rgb.size) < self.least:
            raise BadImageError(f"{rgb.width} x {rgb.height} pixels: tiny, under {self.least} a side")
        rule = Resize.CENTRE_SQUARE if self.square else Resize.STRETCH
        return resize(rgb, Target(self.height, self.width, rule)), rgb.size


def fill(
    read: Reader, examples: Sequence[Sequence[Path]], arrays: Sequence[Path], shape: Sequence[tuple[int, ...]]
) -> Iterator[tuple[int, Outcome]]:
    """Write the pixels of every example into its row of each of the `arrays`; outcomes come in any order."""
    for path, sides in zip(arrays, shape, strict=True):
        open_memmap(path, "w+", np.uint8, (len(examples), *sides))
    parts = [(start, examples[start : start + CHUNK]) for start in range(0, len(examples), CHUNK)]
    processes = min(len(parts), len(os.sched_getaffinity(0)))
    if processes < 2 or len(parts) < WORTH_STARTING:
        for start, part in parts:
            yield from _fill_part(read, start, part, arrays)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy the locks of torch's threads
    pool = ProcessPoolExecutor(processes, context, signal.signal, (signal.SIGINT, signal.SIG_IGN))
    try:
        jobs: list[Future[list[tuple[int, Outcome]]]] = [
            pool.submit(_fill_part, read, start, part, arrays) for start, part in parts
        ]
        for job in as_completed(jobs):
            yield from job.result()
    except BrokenProcessPool as error:
        raise UserError(
            f"a process that decoded images was ended (is memory short? {processes} decode images of up to "
            f"{MAX_PIXELS:,} pixels at once): run the same command again"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def fill_all(
    read: Reader,
    examples: Sequence[Sequence[Path]],
    arrays: Sequence[Path],
    shape: Sequence[tuple[int, ...]],
    *,
    title: str,
    progress: bool,
) -> list[Outcome]:
    """The outcome of every example, in order, with a progress bar."""
    outcomes = [Outcome()] * len(examples)
    with tqdm(total=len(examples), desc=title, unit="img", disable=not progress, leave=False) as bar:
        for row, outcome in fill(read, examples, arrays, shape):
            outcomes[row] = outcome
            bar.update()
    return outcomes


def compact(path: Path, rows: Sequence[int]) -> None:
    """Keep only these rows of an array on disk; a few at a time are in memory."""
    array = open_memmap(path, "r")
    if len(rows) == len(array):
        return
    part = path.with_suffix(".part")
    kept: Any = open_memmap(part, "w+", np.uint8, (len(rows), *array.shape[1:]))
    for start in range(0, len(rows), CHUNK):
        kept[start : start + CHUNK] = array[list(rows[start : start + CHUNK])]
    kept.flush()
    part.replace(path)


def _fill_part(
    read: Reader, start: int, examples: Sequence[Sequence[Path]], arrays: Sequence[Path]
) -> list[tuple[int, Outcome]]:
    opened: list[Any] = [open_memmap(path, "r+") for path in arrays]
    outcomes = []
    for row, files in enumerate(examples, start):
        try:
            digest, pixels = read(files)
        except BadImageError as error:
            outcomes.append((row, Outcome(fault=str(error))))
        except OSError as error:
            outcomes.append((row, Outcome(fault=f"cannot be read ({error.strerror})")))
        else:
            for array, image in zip(opened, pixels, strict=True):
                array[row] = image
            outcomes.append((row, Outcome(digest)))
    return outcomes

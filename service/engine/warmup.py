"""Runs every batch size that will be used, up to the first that takes too long."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatserve.service.engine.padding import Images
from quatserve.service.engine.probe import Run

TRIES = 3  # of a batch size: one run that stalled with the machine is not its pace


def warm_up(
    run: Run,
    image: NDArray[Any],
    max_batch: int,
    max_batch_s: float,
    clock: Callable[[], float] = time.thread_time,
) -> tuple[int, ...]:
    """The sizes that were run: doubling, at least size 1.

    The time is that of the calling thread, which takes part in each run: a model that is loaded while others
    serve must get the same sizes as on a quiet machine, and until the next load.
    """
    sizes = [*(1 << power for power in range(max_batch.bit_length()) if 1 << power < max_batch), max_batch]
    warmed: list[int] = []
    for size in sizes:
        batch = np.repeat(image[None], size, axis=0)
        run(batch)  # the first run of a shape allocates: not its pace
        if warmed and not in_time(run, batch, max_batch_s, clock):
            break
        warmed.append(size)
    return tuple(warmed)


def in_time(run: Run, batch: Images, limit_s: float, clock: Callable[[], float]) -> bool:
    """Whether the batch runs within the limit, in one of a few tries."""
    return any(_seconds(run, batch, clock) <= limit_s for _ in range(TRIES))


def _seconds(run: Run, batch: Images, clock: Callable[[], float]) -> float:
    begun = clock()
    run(batch)
    return clock() - begun

"""What the batcher keeps for each caller: the ticket of a request and its entries in the queue."""

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatserve.service.engine.padding import Images

Rows = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row per image, and the time in the queue and in the run."""

    rows: list[Rows]
    queue_s: float
    run_s: float


class Ticket:
    """The images of one caller. Its future is done when every image has its row, or at the first error."""

    __slots__ = ("entered", "finished", "future", "missing", "rows", "started")

    def __init__(self, count: int, future: "asyncio.Future[None]", entered: float) -> None:
        self.future = future
        self.rows: list[Rows] = [np.empty(0)] * count
        self.missing = count
        self.entered = entered
        self.started = 0.0  # when the first image entered a run; 0 before that
        self.finished = 0.0

    def abandon(self) -> None:
        """Cancel the future and drop it: its exception would keep the caller's frames and images alive."""
        self.future.cancel()
        self.future = self.future.get_loop().create_future()
        self.future.cancel()

    def outcome(self) -> Outcome:
        return Outcome(self.rows, self.started - self.entered, self.finished - self.started)


@dataclass(slots=True)
class QueueEntry:
    """One image in the queue."""

    ticket: Ticket
    index: int
    image: Images

"""What a caller of a batcher holds until its rows are there."""

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatserve.service.engine.padding import Images

Rows = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row per image, and where the time went."""

    rows: list[Rows]
    queue_s: float
    run_s: float


class Ticket:
    """The images of one caller; done when each has its row, or when the first thing goes wrong."""

    __slots__ = ("entered", "finished", "future", "missing", "rows", "started")

    def __init__(self, count: int, future: "asyncio.Future[None]", entered: float) -> None:
        self.future = future
        self.rows: list[Rows] = [np.empty(0)] * count
        self.missing = count
        self.entered = entered
        self.started = 0.0  # when the first image entered a run
        self.finished = 0.0

    def leave(self) -> None:
        """Nobody waits any more. The old future goes: its error leads to the caller and all that it holds."""
        self.future.cancel()
        self.future = self.future.get_loop().create_future()
        self.future.cancel()

    def outcome(self) -> Outcome:
        return Outcome(self.rows, self.started - self.entered, self.finished - self.started)


@dataclass(slots=True)
class Place:
    ticket: Ticket
    index: int
    image: Images

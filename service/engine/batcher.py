"""Gathers images of many callers into runs of one function. Knows nothing of HTTP or onnxruntime.

A run starts the moment the function is idle and an image is there; while it is busy, images gather for
the next one. One thread calls the function and fetches its own next batch, so that a busy event loop
never leaves it idle. Results travel back to the event loop once per batch.

    infer() -> places in the queue -> worker thread: take, run -> event loop: deliver -> infer() returns

A place whose caller has gone (cancelled, out of time, disconnected) has a future that is done: it is
skipped before it costs anything, and a run none of whose callers wait any longer is told to stop.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median_low
from typing import Protocol

from quatserve.service.engine.padding import Images, padded
from quatserve.service.engine.results import Outcome, Place, Rows, Ticket
from quatserve.service.errors import BatcherClosedError, QueueFullError, RunFailedError

PACES = 5  # runs by which the next is judged
STUCK_STEPS = 10  # of the time a run told to stop is given
FAILURES = 8  # runs in a row: then it may not be the images
log = logging.getLogger(__name__)


class Observer(Protocol):
    """Told of each run from the worker thread; anything raised here is our own mistake."""

    def ran(self, images: int, seconds: float) -> None: ...

    def failed(self) -> None: ...


class _Nobody:
    def ran(self, images: int, seconds: float) -> None:
        """Observe nothing."""

    def failed(self) -> None:
        """Observe nothing."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    max_batch: int
    queue_images: int
    queue_timeout_s: float
    stuck_after_s: float
    buckets: tuple[int, ...] = ()  # sizes to pad to, ascending up to max_batch; empty pads nothing


class Batcher:
    """One function, one thread, one bounded queue. Every method is called from the event loop.

    `on_start` is called on the thread, before its first run; `check`, when every run of late has failed: it
    raises if the function is beyond repair. That, or a run that does not come back, is told by `on_stuck`.
    """

    def __init__(
        self,
        run: Callable[[Images], Rows],
        limits: Limits,
        *,
        terminate: Callable[[], None] = lambda: None,
        check: Callable[[], object] = lambda: None,
        on_stuck: Callable[[], None] = lambda: None,
        on_start: Callable[[], None] = lambda: None,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.perf_counter,
        name: str = "batcher",
    ) -> None:
        self._run, self._terminate, self._on_stuck = run, terminate, on_stuck
        self._on_start, self._limits, self._clock, self._check = on_start, limits, clock, check
        self._observer = observer or _Nobody()
        self._queue: deque[Place] = deque()
        self._running: list[Place] = []
        self._runs = 0  # begun so far: the number of the current one
        self._told_to_stop = 0  # the last run that was
        self._failures = 0  # since the last run that did not fail
        self._checks_begun = self._checks_ended = 0
        self._admitted = 0
        self._paces: deque[float] = deque(maxlen=PACES)
        self._seconds_per_image = 0.0
        self._closed = False
        self._changed = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @property
    def queued(self) -> int:
        """Images waiting, those of callers who left included until they are skipped."""
        return len(self._queue)

    @property
    def admitted(self) -> int:
        """Images let in and not yet answered: being decoded, waiting or running."""
        return self._admitted

    def expected_wait_s(self) -> float:
        """How long a new image would wait, by the pace of recent runs."""
        return self._admitted * self._seconds_per_image

    def check_room(self, count: int) -> None:
        """Raise QueueFullError unless `count` images would be admitted now."""
        if self._closed:
            raise BatcherClosedError("the model is being replaced; try again")
        wait_s = self.expected_wait_s()
        room = self._limits.queue_images + self._limits.max_batch - self._admitted
        if count > room or wait_s > self._limits.queue_timeout_s:
            raise QueueFullError(wait_s)

    @contextmanager
    def admit(self, count: int) -> Iterator[None]:
        """Hold room for `count` images from before they are decoded until they are answered."""
        self.check_room(count)
        self._admitted += count
        try:
            yield
        finally:
            self._admitted -= count

    async def infer(
        self, images: Sequence[Images], watch: Callable[["asyncio.Future[None]"], None] = lambda _: None
    ) -> Outcome:
        """Run admitted images, in as many batches as it takes. `watch` is given the future to fail early."""
        loop = self._loop = asyncio.get_running_loop()
        ticket = Ticket(len(images), loop.create_future(), self._clock())
        watch(ticket.future)
        self._enter([Place(ticket, index, image) for index, image in enumerate(images)])
        try:
            await ticket.future
        except BaseException:
            ticket.leave()
            watch(ticket.future)  # whoever kept the old one would keep the same
            self._forget_the_gone()
            self._stop_unwanted_run()
            raise
        return ticket.outcome()

    async def close(self) -> None:
        """Finish what is queued, then end the thread; a thread that is stuck is left behind."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, self._limits.stuck_after_s)

    def _enter(self, places: list[Place]) -> None:
        with self._changed:
            if self._thread.ident is None:
                self._thread.start()
            self._queue.extend(places)
            self._changed.notify()

    def _forget_the_gone(self) -> None:
        """Callers who come and leave during one long run must not pile up behind it."""
        if len(self._queue) <= self._limits.queue_images:
            return
        with self._changed:
            waiting = [place for place in self._queue if not place.ticket.future.done()]
            self._queue.clear()
            self._queue.extend(waiting)

    # --- the end of a run nobody waits for ---

    def _stop_unwanted_run(self) -> None:
        """Called when a caller leaves: if it was the last of the current run, stop the run."""
        with self._changed:  # held, so that the flag cannot hit the run after this one
            if not self._running or not all(place.ticket.future.done() for place in self._running):
                return
            self._terminate()
            told, self._told_to_stop = self._told_to_stop, self._runs
        if told != self._told_to_stop:
            self._watch(self._told_to_stop, STUCK_STEPS)

    def _watch(self, run: int, steps: int) -> None:
        """In steps: a paused process finds its timer due, and must give the run its time all the same."""
        with self._changed:
            if not self._running or self._runs != run:
                return
            self._terminate()  # again: told between being taken and beginning, it did not hear
        if steps:
            self._in_a_step(self._watch, run, steps - 1)
            return
        self._give_up("the model does not come back from a run")

    def _watch_check(self, check: int, steps: int) -> None:
        if self._checks_ended >= check:
            return
        if steps:
            self._in_a_step(self._watch_check, check, steps - 1)
            return
        self._give_up("the model does not come back from its probe")

    def _in_a_step(self, watch: Callable[[int, int], None], number: int, steps: int) -> None:
        step_s = self._limits.stuck_after_s / STUCK_STEPS
        asyncio.get_running_loop().call_later(step_s, watch, number, steps)

    def _give_up(self, reason: str) -> None:
        log.critical("a model cannot go on", extra={"queue": self._thread.name, "reason": reason})
        self._closed = True
        self._fail(list(self._queue), RunFailedError(reason))
        self._on_stuck()

    # --- the worker thread ---

    def _work(self) -> None:
        self._on_start()
        while True:
            with self._changed:
                self._running = []
                self._changed.wait_for(lambda: self._queue or self._closed)
                batch = self._running = self._take()
                self._runs += 1
                if not batch and self._closed and not self._queue:
                    return
            if batch:
                self._run_batch(batch)
            if self._failures == FAILURES:
                self._examine()

    def _take(self) -> list[Place]:
        """The next batch: images somebody still waits for, oldest first."""
        now, batch = self._clock(), list[Place]()
        late = list[Place]()
        while self._queue and len(batch) < self._limits.max_batch:
            place = self._queue.popleft()
            if place.ticket.future.done():
                continue
            if place.ticket.started == 0.0 and now - place.ticket.entered > self._limits.queue_timeout_s:
                late.append(place)
                continue
            place.ticket.started = place.ticket.started or now
            batch.append(place)
        if late:
            self._post(self._fail, late, QueueFullError(self.expected_wait_s()))
        return batch

    def _run_batch(self, batch: list[Place]) -> None:
        begun = self._clock()
        try:
            rows = self._run(padded([place.image for place in batch], self._limits.buckets))
            if len(rows) < len(batch):
                raise RunFailedError(f"the model returned {len(rows)} rows for {len(batch)} images")
        except BaseException as error:  # noqa: BLE001  # whatever a model does, the thread goes on
            failure = (
                error
                if isinstance(error, RunFailedError)
                else RunFailedError(f"{type(error).__name__}: {error}")
            )
            if self._told_to_stop != self._runs:  # asked before the callers hear of it, and leave
                self._failures += 1
                self._observer.failed()
            self._post(self._fail, batch, failure)
            return
        ended = self._clock()
        self._failures = 0
        self._keep_pace((ended - begun) / len(batch))
        self._observer.ran(len(batch), ended - begun)
        self._post(self._deliver, batch, rows, ended)

    def _examine(self) -> None:
        """Was it the images, or is it the function itself?"""
        with self._changed:
            self._running = []  # their callers leave: the check must not be stopped in place of their run
        self._failures = 0
        self._checks_begun += 1
        self._post(self._watch_check, self._checks_begun, STUCK_STEPS)
        try:
            self._check()
        except BaseException as error:  # noqa: BLE001  # as of a run
            self._post(self._give_up, f"the model fails every run: {type(error).__name__}: {error}")
        self._checks_ended += 1

    def _keep_pace(self, seconds_per_image: float) -> None:
        """The median of the last runs: one that stalled with the machine is not their pace."""
        self._paces.append(seconds_per_image)
        self._seconds_per_image = median_low(self._paces)

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        loop = self._loop
        assert loop is not None  # set by infer() before anything is queued
        if not loop.is_closed():
            loop.call_soon_threadsafe(function, *arguments)

    # --- back on the event loop ---

    def _deliver(self, batch: list[Place], rows: Rows, ended: float) -> None:
        for place, row in zip(batch, rows, strict=False):  # rows of the padding are dropped
            ticket = place.ticket
            ticket.rows[place.index] = row
            ticket.missing -= 1
            if ticket.missing == 0 and not ticket.future.done():
                ticket.finished = ended
                ticket.future.set_result(None)

    def _fail(self, places: list[Place], error: Exception) -> None:
        for place in places:
            if not place.ticket.future.done():
                place.ticket.future.set_exception(error)

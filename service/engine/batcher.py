"""Batches the images of many callers into runs of one function. Knows nothing of HTTP or onnxruntime.

A run starts as soon as the function is idle and the queue holds an image; images that arrive during a run
form the next batch. One worker thread calls the function and takes its own next batch, so a busy event loop
never leaves it idle. Results return to the event loop once per batch.

    infer() -> entries in the queue -> worker thread: take, run -> event loop: deliver -> infer() returns

An entry whose caller is gone (cancelled, past its deadline, disconnected) has a future that is done. It is
skipped before it costs anything, and a run is terminated when none of its callers waits any more.
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
from quatserve.service.engine.results import Outcome, QueueEntry, Rows, Ticket
from quatserve.service.errors import BatcherClosedError, QueueFullError, RunFailedError

RECENT_RUNS = 5  # their median predicts the next
STUCK_STEPS = 10  # steps in which `stuck_after_s` is waited for
MAX_FAILURES = 8  # failed runs in a row before the model itself is checked
log = logging.getLogger(__name__)


class Observer(Protocol):
    """Receives each run, on the worker thread; its methods must not raise."""

    def ran(self, images: int, seconds: float) -> None: ...

    def failed(self) -> None: ...


class _NoObserver:
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
    buckets: tuple[int, ...] = ()  # sizes to pad to, ascending to max_batch; empty for no padding


class Batcher:
    """One function, one thread, one bounded queue. Every method is called from the event loop.

    `on_start` is called on the thread before its first run. `check` is called on the thread after
    MAX_FAILURES failed runs in a row and raises if the function is broken. `on_stuck` is called on the event
    loop if it is, or if a run does not return.
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
        self._observer = observer or _NoObserver()
        self._queue: deque[QueueEntry] = deque()
        self._running: list[QueueEntry] = []
        self._runs = 0  # runs started; the number of the current run
        self._terminated_run = 0  # number of the last run that was terminated
        self._failures = 0  # since the last successful run
        self._checks_begun = self._checks_ended = 0
        self._admitted = 0
        self._recent_seconds_per_image: deque[float] = deque(maxlen=RECENT_RUNS)
        self._seconds_per_image = 0.0
        self._closed = False
        self._changed = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @property
    def queued(self) -> int:
        """Images in the queue, including those of callers who left until they are skipped."""
        return len(self._queue)

    @property
    def admitted(self) -> int:
        """Images admitted and not answered yet: being decoded, queued or running."""
        return self._admitted

    def expected_wait_s(self) -> float:
        """How long a new image would wait, predicted from recent runs."""
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
        """Reserve room for `count` images from before they are decoded until they are answered."""
        self.check_room(count)
        self._admitted += count
        try:
            yield
        finally:
            self._admitted -= count

    async def infer(
        self, images: Sequence[Images], watch: Callable[["asyncio.Future[None]"], None] = lambda _: None
    ) -> Outcome:
        """Run admitted images, in one or more batches. `watch` receives the future, to fail it early."""
        loop = self._loop = asyncio.get_running_loop()
        ticket = Ticket(len(images), loop.create_future(), self._clock())
        watch(ticket.future)
        self._enter([QueueEntry(ticket, index, image) for index, image in enumerate(images)])
        try:
            await ticket.future
        except BaseException:
            ticket.abandon()
            watch(ticket.future)  # the watcher must not keep the old future either
            self._drop_abandoned()
            self._stop_unwanted_run()
            raise
        return ticket.outcome()

    async def close(self) -> None:
        """Finish the queue, then end the thread; do not wait for a thread that is stuck."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, self._limits.stuck_after_s)

    def _enter(self, entries: list[QueueEntry]) -> None:
        with self._changed:
            if self._thread.ident is None:
                self._thread.start()
            self._queue.extend(entries)
            self._changed.notify()

    def _drop_abandoned(self) -> None:
        """Remove entries whose caller has left; many may gather during one long run."""
        if len(self._queue) <= self._limits.queue_images:
            return
        with self._changed:
            waiting = [entry for entry in self._queue if not entry.ticket.future.done()]
            self._queue.clear()
            self._queue.extend(waiting)

    # --- terminating a run that nobody waits for ---

    def _stop_unwanted_run(self) -> None:
        """Called when a caller leaves: terminate the current run if no other caller waits for it."""
        with self._changed:  # held, so that the next run cannot start and be terminated instead
            if not self._running or not all(entry.ticket.future.done() for entry in self._running):
                return
            self._terminate()
            previous, self._terminated_run = self._terminated_run, self._runs
        if previous != self._terminated_run:
            self._watch(self._terminated_run, STUCK_STEPS)

    def _watch(self, run: int, steps: int) -> None:
        """Declare the model stuck if a terminated run does not return within `stuck_after_s`.

        The wait is split into steps: a process that was suspended (SIGSTOP, VM pause) finds a single long
        timer already due when it resumes, and would give up at once.
        """
        with self._changed:
            if not self._running or self._runs != run:
                return
            self._terminate()  # terminate() before the run started is lost, so repeat it
        if steps:
            self._after_a_step(self._watch, run, steps - 1)
            return
        self._give_up("a run does not return")

    def _watch_check(self, check: int, steps: int) -> None:
        if self._checks_ended >= check:
            return
        if steps:
            self._after_a_step(self._watch_check, check, steps - 1)
            return
        self._give_up("the probe does not return")

    def _after_a_step(self, watch: Callable[[int, int], None], number: int, steps: int) -> None:
        step_s = self._limits.stuck_after_s / STUCK_STEPS
        asyncio.get_running_loop().call_later(step_s, watch, number, steps)

    def _give_up(self, reason: str) -> None:
        log.critical("model stuck", extra={"queue": self._thread.name, "reason": reason})
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
            if self._failures == MAX_FAILURES:
                self._check_model()

    def _take(self) -> list[QueueEntry]:
        """Take the next batch: entries whose caller still waits, oldest first."""
        now, batch = self._clock(), list[QueueEntry]()
        late = list[QueueEntry]()
        while self._queue and len(batch) < self._limits.max_batch:
            entry = self._queue.popleft()
            if entry.ticket.future.done():
                continue
            if entry.ticket.started == 0.0 and now - entry.ticket.entered > self._limits.queue_timeout_s:
                late.append(entry)
                continue
            entry.ticket.started = entry.ticket.started or now
            batch.append(entry)
        if late:
            self._post(self._fail, late, QueueFullError(self.expected_wait_s()))
        return batch

    def _run_batch(self, batch: list[QueueEntry]) -> None:
        begun = self._clock()
        try:
            rows = self._run(padded([entry.image for entry in batch], self._limits.buckets))
            if len(rows) < len(batch):
                raise RunFailedError(f"the model returned {len(rows)} rows for {len(batch)} images")
        except BaseException as error:  # noqa: BLE001  # the thread must survive any error of a model
            failure = (
                error
                if isinstance(error, RunFailedError)
                else RunFailedError(f"{type(error).__name__}: {error}")
            )
            if self._terminated_run != self._runs:  # read before the callers are told, since they then leave
                self._failures += 1
                self._observer.failed()
            self._post(self._fail, batch, failure)
            return
        ended = self._clock()
        self._failures = 0
        self._record_pace((ended - begun) / len(batch))
        self._observer.ran(len(batch), ended - begun)
        self._post(self._deliver, batch, rows, ended)

    def _check_model(self) -> None:
        """Run the probe to tell bad input from a broken session."""
        with self._changed:
            self._running = []  # callers that leave now must not terminate the probe
        self._failures = 0
        self._checks_begun += 1
        self._post(self._watch_check, self._checks_begun, STUCK_STEPS)
        try:
            self._check()
        except BaseException as error:  # noqa: BLE001  # as for a run
            self._post(self._give_up, f"every run fails: {type(error).__name__}: {error}")
        self._checks_ended += 1

    def _record_pace(self, seconds_per_image: float) -> None:
        """Keep the median of the recent runs; a single stalled run does not change it."""
        self._recent_seconds_per_image.append(seconds_per_image)
        self._seconds_per_image = median_low(self._recent_seconds_per_image)

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        loop = self._loop
        assert loop is not None  # set by infer() before anything is queued
        if not loop.is_closed():
            loop.call_soon_threadsafe(function, *arguments)

    # --- back on the event loop ---

    def _deliver(self, batch: list[QueueEntry], rows: Rows, ended: float) -> None:
        for entry, row in zip(batch, rows, strict=False):  # the rows of the padding are dropped
            ticket = entry.ticket
            ticket.rows[entry.index] = row
            ticket.missing -= 1
            if ticket.missing == 0 and not ticket.future.done():
                ticket.finished = ended
                ticket.future.set_result(None)

    def _fail(self, entries: list[QueueEntry], error: Exception) -> None:
        for entry in entries:
            if not entry.ticket.future.done():
                entry.ticket.future.set_exception(error)

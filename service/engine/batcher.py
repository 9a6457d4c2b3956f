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
from collections.abc import Callable, Sequence
from typing import Protocol

from quatserve.service.engine.admission import Admission, Limits
from quatserve.service.engine.padding import Images, padded
from quatserve.service.engine.results import Outcome, QueueEntry, Rows, Ticket
from quatserve.service.engine.watchdog import Watchdog
from quatserve.service.errors import DeviceFailedError, QueueFullError, RunFailedError

MAX_FAILURES = 8  # failed runs in a row before the model itself is checked
log = logging.getLogger(__name__)


class Observer(Protocol):
    """Receives each run, on the worker thread; its methods must not raise."""

    def ran(self, images: int, seconds: float) -> None: ...

    def failed(self) -> None: ...


class Batcher(Admission):
    """One function, one thread, one bounded queue. Every method is called from the event loop.

    `on_start` is called on the thread before its first run. `check` is called on the thread after
    MAX_FAILURES failed runs in a row, after one if the device failed, and when the queue has been empty for
    `idle_check_s`; it raises if the function is broken. `on_stuck` is called on the event loop if it is, or
    if a run does not return.
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
        super().__init__(limits)
        self._run, self._terminate, self._on_stuck = run, terminate, on_stuck
        self._on_start, self._clock, self._check, self._observer = on_start, clock, check, observer
        self._watchdog = Watchdog(limits.stuck_after_s, self._give_up)
        self._queue: deque[QueueEntry] = deque()
        self._running: list[QueueEntry] = []
        self._runs = 0  # runs started; the number of the current run
        self._terminated_run = 0  # number of the last run that was terminated
        self._failures = 0  # since the last successful run
        self._checks_begun = self._checks_ended = 0
        self._changed = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @property
    def queued(self) -> int:
        """Images in the queue, including those of callers who left until they are skipped."""
        return len(self._queue)

    def start(self) -> None:
        """Start the thread, so that an idle model is checked; `infer` starts it at the latest."""
        self._loop = asyncio.get_running_loop()
        if self._thread.ident is None:
            self._thread.start()

    async def infer(
        self, images: Sequence[Images], watch: Callable[["asyncio.Future[None]"], None] = lambda _: None
    ) -> Outcome:
        """Run admitted images, in one or more batches. `watch` receives the future, to fail it early."""
        self.start()
        ticket = Ticket(len(images), asyncio.get_running_loop().create_future(), self._clock())
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
            self.closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, self._limits.stuck_after_s)

    def _enter(self, entries: list[QueueEntry]) -> None:
        with self._changed:
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
            run = self._terminated_run
            self._watchdog.watch(lambda: self._has_stopped(run), "a run does not return")

    def _has_stopped(self, run: int) -> bool:
        with self._changed:
            if not self._running or self._runs != run:
                return True
            self._terminate()  # terminate() before the run started is lost, so repeat it
            return False

    def _give_up(self, reason: str) -> None:
        log.critical("model stuck", extra={"queue": self._thread.name, "reason": reason})
        self.closed = True
        self._fail(list(self._queue), RunFailedError(reason))
        self._on_stuck()

    # --- the worker thread ---

    def _work(self) -> None:
        try:
            self._on_start()
        except BaseException as error:  # noqa: BLE001  # as for a run
            self._post(self._give_up, f"the thread cannot start: {type(error).__name__}: {error}")
            return
        while True:
            with self._changed:
                self._running = []
                used = self._changed.wait_for(
                    lambda: bool(self._queue) or self.closed, self._limits.idle_check_s
                )
                batch = self._running = self._take()
                self._runs += 1
                if not batch and self.closed and not self._queue:
                    return
            if batch:
                self._run_batch(batch)
            if self._failures >= MAX_FAILURES or not used:
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
            if self._terminated_run != self._runs:  # read before the callers are told, since they then leave
                self._failures += MAX_FAILURES if isinstance(error, DeviceFailedError) else 1
                if self._observer:
                    self._observer.failed()
            known = isinstance(error, (RunFailedError, MemoryError))
            self._post(
                self._fail, batch, error if known else RunFailedError(f"{type(error).__name__}: {error}")
            )
            return
        ended = self._clock()
        self._failures = 0
        self.record_run((ended - begun) / len(batch))
        if self._observer:
            self._observer.ran(len(batch), ended - begun)
        self._post(self._deliver, batch, rows, ended)

    def _check_model(self) -> None:
        """Run the probe to tell bad input from a broken session."""
        with self._changed:
            self._running = []  # callers that leave now must not terminate the probe
        self._failures = 0
        self._checks_begun = check = self._checks_begun + 1
        self._post(
            self._watchdog.watch,
            lambda: self._checks_ended >= check,
            "the probe of the model does not return",
        )
        try:
            self._check()
        except BaseException as error:  # noqa: BLE001  # as for a run
            self._post(self._give_up, f"the model is broken: {type(error).__name__}: {error}")
        self._checks_ended = check

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        loop = self._loop
        assert loop is not None  # set by start()
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

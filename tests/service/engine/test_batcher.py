"""The batcher with plain functions in place of a model: nothing here knows HTTP or onnxruntime."""

import asyncio
import dataclasses
import gc
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quatserve.service.engine.admission import Limits
from quatserve.service.engine.batcher import MAX_FAILURES, Batcher
from quatserve.service.engine.padding import pad_to, padded
from quatserve.service.engine.results import Outcome
from quatserve.service.errors import BatcherClosedError, QueueFullError, RunFailedError

Image = NDArray[np.uint8]
LIMITS = Limits(max_batch=4, queue_images=8, queue_timeout_s=5.0, stuck_after_s=0.1)
PATIENT = dataclasses.replace(LIMITS, stuck_after_s=2.0)  # with runs that do stop, on a slow machine too


def image(value: int) -> Image:
    return np.full((2, 2, 3), value, np.uint8)


def total(images: Image) -> NDArray[Any]:
    """One row per image: the sum of its pixels."""
    return np.asarray(images.reshape(len(images), -1).sum(axis=1, dtype=np.int64)[:, None])


class Gate:
    """A model that waits to be let through, and remembers the batches it was given."""

    def __init__(self, open_: bool = False) -> None:
        self.batches: list[int] = []
        self.values: list[int] = []
        self.entered = threading.Semaphore(0)
        self._pass = threading.Event()
        self.terminated = threading.Event()
        if open_:
            self.open()

    def open(self) -> None:
        self._pass.set()

    def close(self) -> None:
        self._pass.clear()

    def __call__(self, images: Image) -> NDArray[Any]:
        self.batches.append(len(images))
        self.values += images[:, 0, 0, 0].tolist()
        self.terminated.clear()  # like onnxruntime's: for this run alone
        self.entered.release()
        while not self._pass.wait(0.005):
            if self.terminated.is_set():
                raise RuntimeError("terminated")
        return total(images)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))


async def entered(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.entered.acquire, True, 5)


async def submit(batcher: Batcher, *values: int) -> Outcome:
    with batcher.admit(len(values)):
        return await batcher.infer([image(v) for v in values])


def started(*work: Awaitable[Any]) -> list["asyncio.Task[Any]"]:
    return [asyncio.ensure_future(w) for w in work]


def test_each_caller_gets_its_own_rows() -> None:
    async def test() -> None:
        batcher = Batcher(total, LIMITS)
        outcomes = await asyncio.gather(*(submit(batcher, v, v + 1) for v in range(4)))
        found = [[int(row[0]) for row in outcome.rows] for outcome in outcomes]
        assert found == [[12 * v, 12 * (v + 1)] for v in range(4)]
        await batcher.close()

    run(test)


def test_an_idle_model_never_waits_and_a_busy_one_fills_up() -> None:
    async def test() -> None:
        gate = Gate()
        batcher = Batcher(gate, LIMITS)
        first = started(submit(batcher, 1))
        await entered(gate)  # alone, and at once
        rest = started(*(submit(batcher, v) for v in range(2, 9)))
        await asyncio.sleep(0.05)
        gate.open()
        await asyncio.gather(*first, *rest)
        assert gate.batches == [1, 4, 3]
        assert gate.values == [1, 2, 3, 4, 5, 6, 7, 8]  # oldest first
        await batcher.close()

    run(test)


def test_images_are_counted_not_requests() -> None:
    async def test() -> None:
        gate = Gate()
        batcher = Batcher(gate, LIMITS)
        first = started(submit(batcher, 1))
        await entered(gate)
        rest = started(submit(batcher, 2, 3, 4), submit(batcher, 5, 6, 7))
        await asyncio.sleep(0.05)
        gate.open()
        outcomes = await asyncio.gather(*first, *rest)
        assert gate.batches == [1, 4, 2]  # the second request is split over two runs
        assert [int(row[0]) for row in outcomes[2].rows] == [60, 72, 84]
        await batcher.close()

    run(test)


def test_a_full_queue_refuses_and_room_comes_back() -> None:
    async def test() -> None:
        gate = Gate()
        batcher = Batcher(gate, LIMITS)
        work = started(*(submit(batcher, 1, 2, 3, 4) for _ in range(3)))  # 8 queued and 4 running
        await entered(gate)
        assert batcher.admitted == 12
        with pytest.raises(QueueFullError):
            await submit(batcher, 5)
        gate.open()
        await asyncio.gather(*work)
        assert batcher.admitted == 0
        await submit(batcher, 5)
        await batcher.close()

    run(test)


def test_work_that_cannot_start_in_time_is_refused_at_once() -> None:
    async def test() -> None:
        now, gate = [0.0], Gate(open_=True)

        def model(images: Image) -> NDArray[Any]:
            now[0] += 0.1 * len(images)
            return gate(images)

        limits = Limits(max_batch=1, queue_images=100, queue_timeout_s=0.25, stuck_after_s=1)
        batcher = Batcher(model, limits, clock=lambda: now[0])
        await submit(batcher, 1)  # now its pace is known: 0.1 s an image
        gate.close()
        work = started(*(submit(batcher, v) for v in range(3)))
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError) as refusal:
            await submit(batcher, 9)
        assert refusal.value.retry_after_s == pytest.approx(0.3)
        gate.open()
        await asyncio.gather(*work, return_exceptions=True)
        await batcher.close()

    run(test)


def test_one_run_that_stalled_is_not_the_pace_and_several_are() -> None:
    async def test() -> None:
        now, takes_s = [0.0], [0.0]

        def model(images: Image) -> NDArray[Any]:
            now[0] += takes_s[0]
            return total(images)

        batcher = Batcher(model, LIMITS, clock=lambda: now[0])

        async def expected_after(seconds: float) -> float:
            takes_s[0] = seconds
            await submit(batcher, 1)
            with batcher.admit(1):
                return batcher.expected_wait_s()

        stalled = [await expected_after(s) for s in (0.01, 0.01, 60.0, 0.01, 0.01)]
        assert stalled == pytest.approx([0.01] * 5)
        assert [await expected_after(1.0) for _ in range(3)][-1] == pytest.approx(1.0)
        await batcher.close()

    run(test)


def test_waiting_longer_than_the_limit_is_refused_when_its_turn_comes() -> None:
    async def test() -> None:
        now = [0.0]
        gate = Gate()
        batcher = Batcher(gate, LIMITS, clock=lambda: now[0])
        first = started(submit(batcher, 1))
        await entered(gate)
        late = started(submit(batcher, 2))
        await asyncio.sleep(0.02)
        now[0] = 4.0
        in_time = started(submit(batcher, 3))
        await asyncio.sleep(0.02)
        now[0] = 6.0  # 6 s after the second entered, 2 s after the third
        gate.open()
        results = await asyncio.gather(*first, *late, *in_time, return_exceptions=True)
        assert isinstance(results[1], QueueFullError)
        assert gate.values == [1, 3]
        assert isinstance(results[2], Outcome)
        assert results[2].queue_s == 2.0
        await batcher.close()

    run(test)


def test_whoever_leaves_the_queue_costs_nothing() -> None:
    async def test() -> None:
        gate = Gate()
        batcher = Batcher(gate, LIMITS)
        first = started(submit(batcher, 1))
        await entered(gate)
        leaving = started(*(submit(batcher, v) for v in (2, 3, 4)))
        staying = started(submit(batcher, 5))
        await asyncio.sleep(0.02)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        assert batcher.admitted == 2
        gate.open()
        await asyncio.gather(*first, *staying)
        assert gate.values == [1, 5]
        await batcher.close()

    run(test)


def test_comers_and_goers_do_not_pile_up_behind_a_long_run() -> None:
    async def test() -> None:
        gate = Gate()
        batcher = Batcher(gate, LIMITS)
        first = started(submit(batcher, 1))
        await entered(gate)
        for _ in range(200):
            task = asyncio.ensure_future(submit(batcher, 2))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert batcher.queued <= LIMITS.queue_images + 1
        gate.open()
        await asyncio.gather(*first)
        await batcher.close()

    run(test)


def test_a_run_nobody_waits_for_is_terminated_and_the_next_goes_on() -> None:
    async def test() -> None:
        gate = Gate()
        batcher = Batcher(gate, PATIENT, terminate=gate.terminated.set)
        work = started(submit(batcher, 1), submit(batcher, 2))
        await entered(gate)
        running = gate.batches[0]  # one or both, by the scheduling
        next_ = started(submit(batcher, 3))
        await asyncio.sleep(0.02)
        for task in work[:running]:
            assert not gate.terminated.is_set()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await entered(gate)
        gate.open()
        assert int((await next_[0]).rows[0][0]) == 36
        await batcher.close()

    run(test)


def test_a_run_somebody_waits_for_goes_on() -> None:
    async def test() -> None:
        gate = Gate()
        batcher = Batcher(gate, PATIENT, terminate=gate.terminated.set)
        first = started(submit(batcher, 9))
        await entered(gate)
        pair = started(submit(batcher, 1), submit(batcher, 2))
        await asyncio.sleep(0.02)
        first[0].cancel()
        await entered(gate)
        assert gate.batches == [1, 2]  # both in one run
        pair[0].cancel()
        await asyncio.gather(pair[0], return_exceptions=True)
        assert not gate.terminated.is_set()
        gate.open()
        assert int((await pair[1]).rows[0][0]) == 24
        await batcher.close()

    run(test)


def test_a_run_that_does_not_come_back_is_reported() -> None:
    async def test() -> None:
        gate = Gate()
        stuck = asyncio.Event()
        batcher = Batcher(gate, LIMITS, on_stuck=stuck.set)  # terminate does nothing
        work = started(submit(batcher, 1))
        await entered(gate)
        waiting = started(submit(batcher, 2))
        await asyncio.sleep(0.01)
        work[0].cancel()
        await asyncio.wait_for(stuck.wait(), 5)
        with pytest.raises(RunFailedError, match="does not return"):
            await waiting[0]
        with pytest.raises(BatcherClosedError):
            await submit(batcher, 3)
        gate.open()

    run(test)


def test_a_run_that_stops_when_told_is_not_reported() -> None:
    async def test() -> None:
        gate, reports = Gate(), list[int]()
        batcher = Batcher(gate, PATIENT, terminate=gate.terminated.set, on_stuck=lambda: reports.append(1))
        work = started(submit(batcher, 1))
        await entered(gate)
        work[0].cancel()
        following = started(submit(batcher, 2))
        await entered(gate)  # the first came back
        await asyncio.sleep(1.25 * PATIENT.stuck_after_s)
        assert reports == []
        gate.open()
        assert int((await following[0]).rows[0][0]) == 24
        await batcher.close()

    run(test)


def test_a_run_told_to_stop_before_it_listens_is_told_again() -> None:
    """Between being taken and beginning: onnxruntime's flag is made with each run."""

    async def test() -> None:
        gate, told, reports = Gate(), threading.Event(), list[int]()

        def model(images: Image) -> NDArray[Any]:
            taken.release()
            told.wait(10)
            return gate(images)

        def terminate() -> None:
            gate.terminated.set()
            told.set()

        taken = threading.Semaphore(0)
        batcher = Batcher(model, PATIENT, terminate=terminate, on_stuck=lambda: reports.append(1))
        work = started(submit(batcher, 1))
        assert await asyncio.to_thread(taken.acquire, True, 5)
        work[0].cancel()
        await entered(gate)
        following = started(submit(batcher, 2))
        await entered(gate)  # the first has heard
        gate.open()
        assert int((await following[0]).rows[0][0]) == 24
        assert reports == []
        await batcher.close()

    run(test)


def test_a_paused_process_does_not_take_its_run_for_stuck() -> None:
    async def test() -> None:
        gate, reports = Gate(), list[int]()
        limits = Limits(max_batch=4, queue_images=8, queue_timeout_s=5.0, stuck_after_s=2.0)
        batcher = Batcher(gate, limits, on_stuck=lambda: reports.append(1))  # terminate does nothing
        work = started(submit(batcher, 1))
        await entered(gate)
        work[0].cancel()
        await asyncio.sleep(0.01)
        time.sleep(2.1)  # noqa: ASYNC251  # like a pause: afterwards every timer is due
        await asyncio.sleep(0.1)
        gate.open()
        assert int((await submit(batcher, 2)).rows[0][0]) == 24
        assert reports == []
        await batcher.close()

    run(test)


@pytest.mark.parametrize("fault", [ValueError("bad"), SystemExit(3), KeyboardInterrupt(), MemoryError()])
def test_whatever_the_model_raises_the_next_run_goes_on(fault: BaseException) -> None:
    async def test() -> None:
        def model(images: Image) -> NDArray[Any]:
            if images[0, 0, 0, 0] == 13:
                raise fault
            return total(images)

        batcher = Batcher(model, LIMITS)
        with pytest.raises((RunFailedError, MemoryError)) as told:
            await submit(batcher, 13)
        assert told.value is fault or type(fault).__name__ in str(told.value)  # MemoryError has a status
        assert int((await submit(batcher, 1)).rows[0][0]) == 12
        await batcher.close()

    run(test)


def test_a_failure_keeps_nothing_of_its_caller_alive() -> None:
    """Whoever watches the future, as a connection does, must not hold on to the error and its frames."""

    class Upload:
        """What a caller holds."""

    async def test() -> None:
        def model(images: Image) -> NDArray[Any]:
            raise ValueError("bad")

        batcher, watched, uploads = Batcher(model, LIMITS), list[Any](), list[Any]()

        async def call() -> None:
            upload = Upload()
            uploads.append(weakref.ref(upload))
            with batcher.admit(1):
                await batcher.infer([image(1)], lambda future: watched.__setitem__(slice(None), [future]))

        with suppress(RunFailedError):
            await call()
        await batcher.close()  # while its thread comes to rest, it holds the error too
        assert len(watched) == 1
        assert uploads[0]() is None

    gc.disable()
    try:
        run(test)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("values", "checks"),
    [
        ([13] * (MAX_FAILURES - 1), 0),
        ([13] * MAX_FAILURES, 1),
        ([13] * 2 * MAX_FAILURES, 2),  # the check was passed, and so the count begins again
        (([13] * (MAX_FAILURES - 1) + [1]) * 3, 0),
    ],
)
def test_failures_in_a_row_are_followed_by_a_check(values: list[int], checks: int) -> None:
    async def test() -> None:
        def model(images: Image) -> NDArray[Any]:
            if images[0, 0, 0, 0] == 13:
                raise ValueError("bad")
            return total(images)

        asked, reports = list[str](), list[int]()
        batcher = Batcher(
            model,
            LIMITS,
            check=lambda: asked.append(threading.current_thread().name),
            on_stuck=lambda: reports.append(1),
            name="its-own",
        )
        for value in values:
            await asyncio.gather(submit(batcher, value), return_exceptions=True)
        assert int((await submit(batcher, 1)).rows[0][0]) == 12
        assert asked == ["its-own"] * checks  # where it runs alone with the function
        assert reports == []
        await batcher.close()

    run(test)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_check_that_fails_or_does_not_come_back_is_reported(hangs: bool) -> None:
    async def test() -> None:
        def model(images: Image) -> NDArray[Any]:
            raise ValueError("bad")

        stuck, go_on = asyncio.Event(), threading.Event()
        check = partial(go_on.wait, 10) if hangs else partial(model, image(0))
        batcher = Batcher(model, LIMITS, check=check, on_stuck=stuck.set)
        for _ in range(MAX_FAILURES):
            with pytest.raises(RunFailedError):
                await submit(batcher, 1)
        await asyncio.wait_for(stuck.wait(), 5)
        with pytest.raises(BatcherClosedError):
            await submit(batcher, 1)
        go_on.set()
        await batcher.close()

    run(test)


def test_a_check_is_not_stopped_in_place_of_the_run_before_it() -> None:
    """Its callers leave with their error while the check is under way."""

    async def test() -> None:
        checking, go_on, told = threading.Event(), threading.Event(), list[bool]()

        def model(images: Image) -> NDArray[Any]:
            raise ValueError("bad")

        def check() -> None:
            checking.set()
            go_on.wait(5)

        batcher = Batcher(model, LIMITS, check=check, terminate=lambda: told.append(checking.is_set()))
        for _ in range(MAX_FAILURES):
            await asyncio.gather(submit(batcher, 1), return_exceptions=True)
        assert await asyncio.to_thread(checking.wait, 5)
        batcher._stop_unwanted_run()
        assert True not in told
        go_on.set()
        await batcher.close()

    run(test)


def test_runs_told_to_stop_have_not_failed() -> None:
    async def test() -> None:
        gate, asked = Gate(), list[int]()
        batcher = Batcher(gate, PATIENT, terminate=gate.terminated.set, check=lambda: asked.append(1))
        for value in range(MAX_FAILURES + 1):
            work = started(submit(batcher, value))
            await entered(gate)
            work[0].cancel()
            await asyncio.gather(*work, return_exceptions=True)
        gate.open()
        assert int((await submit(batcher, 1)).rows[0][0]) == 12
        assert asked == []
        await batcher.close()

    run(test)


def test_too_few_rows_are_a_failure() -> None:
    async def test() -> None:
        batcher = Batcher(lambda images: np.zeros((len(images) - 1, 1)), LIMITS)
        with pytest.raises(RunFailedError, match="0 rows for 1 images"):
            await submit(batcher, 1)
        await batcher.close()

    run(test)


def test_batches_are_padded_to_buckets_and_the_padding_is_dropped() -> None:
    async def test() -> None:
        gate = Gate(open_=True)
        limits = Limits(max_batch=4, queue_images=8, queue_timeout_s=5, stuck_after_s=1, buckets=(1, 2, 4))
        batcher = Batcher(gate, limits)
        outcome = await submit(batcher, 1, 2, 3)
        assert gate.batches == [4]
        assert [int(row[0]) for row in outcome.rows] == [12, 24, 36]
        await batcher.close()

    run(test)


def test_buckets() -> None:
    assert [pad_to((1, 2, 4, 8), n) for n in (1, 2, 3, 5, 8)] == [1, 2, 4, 8, 8]
    assert pad_to((), 5) == 5


def test_padding_repeats_the_last_image() -> None:
    three = [image(1), image(2), image(3)]
    assert padded(three, (1, 2, 4, 8))[:, 0, 0, 0].tolist() == [1, 2, 3, 3]
    assert padded(three, ())[:, 0, 0, 0].tolist() == [1, 2, 3]


def test_closing_finishes_what_is_queued() -> None:
    async def test() -> None:
        gate = Gate()
        batcher = Batcher(gate, LIMITS)
        work = started(*(submit(batcher, v) for v in range(1, 9)))
        await entered(gate)
        closing = asyncio.ensure_future(batcher.close())
        await asyncio.sleep(0.02)
        with pytest.raises(BatcherClosedError):
            await submit(batcher, 9)
        gate.open()
        outcomes = await asyncio.gather(*work)
        assert [int(o.rows[0][0]) for o in outcomes] == [12 * v for v in range(1, 9)]
        await closing

    run(test)


def test_runs_are_observed() -> None:
    class Notes:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def ran(self, images: int, seconds: float) -> None:
            assert seconds >= 0
            self.seen.append(images)

        def failed(self) -> None:
            self.seen.append(-1)

    async def test() -> None:
        notes = Notes()
        batcher = Batcher(total, LIMITS, observer=notes)
        await submit(batcher, 1, 2, 3)
        assert notes.seen == [3]
        await batcher.close()

    run(test)


def test_many_callers_leaving_at_random_leave_nothing_behind() -> None:
    async def test() -> None:
        rng = np.random.default_rng(0)
        batcher = Batcher(total, Limits(max_batch=4, queue_images=1000, queue_timeout_s=5, stuck_after_s=1))
        tasks = []
        for index in range(500):
            tasks.append(asyncio.ensure_future(submit(batcher, index % 200)))
            if rng.random() < 0.3:
                await asyncio.sleep(0)
            if rng.random() < 0.5:
                tasks[rng.integers(len(tasks))].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for index, result in enumerate(results):
            if isinstance(result, Outcome):
                assert int(result.rows[0][0]) == 12 * (index % 200)
            else:
                assert isinstance(result, asyncio.CancelledError)
        assert (batcher.admitted, batcher.queued) == (0, 0)
        await batcher.close()

    run(test)

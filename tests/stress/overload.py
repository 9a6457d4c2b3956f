"""Ten times as many clients as there is room for: served, or refused at once; well again a moment later."""

import asyncio
import time
from pathlib import Path

from tests.service.artifacts import CLASSIFIER, write_classifier
from tests.service.harness import RunningService, plain
from tests.stress.connection import Connection, post
from tests.stress.record import SERVICE, Record, measured, under_attack

MAX_BATCH, QUEUE_IMAGES, QUEUE_TIMEOUT_S = 8, 16, 2.0
CONNECTIONS = 10 * (QUEUE_IMAGES + MAX_BATCH)
ROUNDS = 20  # of idle work in the model: a batch takes some ten milliseconds
RETRY_PAUSE_S = 0.25  # a quarter of what Retry-After asks for
REFUSED_WITHIN_S = 0.25
RECOVERED_WITHIN_S = 1.0
CALM = 10  # answers in a row, one at a time, that make it well again
REQUEST = post("/classify", plain((200, 60, 40)))


async def insist(port: int, record: Record, until: float) -> None:
    """Ask without end, with a short pause when refused."""
    async with Connection(port) as connection:
        while time.monotonic() < until:
            answer = await connection.ask(REQUEST)
            record.answered(answer.status, answer.seconds)
            if answer.status == 503:
                await asyncio.sleep(RETRY_PAUSE_S)


async def overload(port: int, record: Record, seconds: float) -> None:
    until = time.monotonic() + seconds
    await asyncio.gather(*(insist(port, record, until) for _ in range(CONNECTIONS)))


async def recovery_s(port: int) -> float:
    """From the end of the load until the last of a few answers in a row."""
    begun, calm = time.monotonic(), 0
    async with Connection(port) as connection:
        while calm < CALM and time.monotonic() - begun < 10 * RECOVERED_WITHIN_S:
            calm = calm + 1 if (await connection.ask(REQUEST)).status == 200 else 0
    return time.monotonic() - begun


def batch_s(running: RunningService) -> float:
    """The mean time of a run, which under overload is a full batch."""
    total, count = (
        running.metric(f"quatserve_run_seconds_{part}", model=CLASSIFIER) for part in ("sum", "count")
    )
    return total / count


def attack(root: Path, *, seconds: float) -> Record:
    write_classifier(root, rounds=ROUNDS)
    record = Record(f"overload, {CONNECTIONS} connections")
    settings = {"max_batch": MAX_BATCH, "queue_images": QUEUE_IMAGES, "queue_timeout_s": QUEUE_TIMEOUT_S}
    with under_attack(record, root, SERVICE, **settings, threads=1, access_log=False) as running:
        asyncio.run(overload(running.port, Record("warm"), 0.2 * seconds))
        with measured(record, running):
            asyncio.run(overload(running.port, record, seconds))
        recovered = asyncio.run(recovery_s(running.port))
        limit_s = QUEUE_TIMEOUT_S + 2 * batch_s(running)
    _judge(record, limit_s, recovered)
    return record


def _judge(record: Record, limit_s: float, recovered_s: float) -> None:
    served, refused = record.count(200), record.count(503)
    record.check("served or refused, nothing else", record.statuses(), record.total() == served + refused)
    record.check("some of each", f"{served:,} served, {refused:,} refused", min(served, refused) > 0)
    p99_s = record.quantile_s(0.99, 200)
    promise = f"served: p99 within the queue timeout and two batches, {limit_s:.2f} s"
    record.check(promise, f"{p99_s:.3f} s", p99_s <= limit_s, quiet=True)
    p99_s = record.quantile_s(0.99, 503)
    promise = f"refused: p99 within {REFUSED_WITHIN_S:g} s"
    record.check(promise, f"{p99_s:.3f} s", p99_s <= REFUSED_WITHIN_S, quiet=True)
    promise = f"{CALM} answers in a row within {RECOVERED_WITHIN_S:g} s of the end"
    record.check(promise, f"{recovered_s:.3f} s", recovered_s <= RECOVERED_WITHIN_S, quiet=True)
    record.check_memory()

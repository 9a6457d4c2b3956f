"""Clients that drip, never end, lie, say nothing or do not read are let go in time; others are served."""

import asyncio
import signal
from collections import Counter
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

from quatserve.service.web.open_files import allow_open_files
from quatserve.service.web.protocol import LINGER_S
from tests.service.artifacts import CLASSIFIER, write_both, write_classifier
from tests.service.harness import RunningService, plain
from tests.service.web.test_unread_answers import ASK, deaf_client, open_files
from tests.stress.connection import LOST, NO_ANSWER, Connection, post, pour
from tests.stress.pests import PATIENCE_S, PESTS, SILENT
from tests.stress.record import Record, measured, settle, under_attack

OPENING_PAUSE_S = 0.001  # between two of a crowd: opened all at once, they would hold up everybody here
FEW_FILES = """
import resource, runpy
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))  # fewer than there will be connections
runpy.run_module("service", run_name="__main__")
"""
HONEST = post("/classify", plain((200, 60, 40)))
HONEST_PAUSE_S = 0.02
HONEST_WITHIN_S = 1.0
MAX_BODY_BYTES = 2 << 20


async def _ask_on(port: int, record: Record, over: asyncio.Event, requests: int) -> None:
    """An honest client: so many requests over each of its connections, until it is over."""
    while not over.is_set():
        async with Connection(port) as connection:
            for _ in range(requests):
                try:
                    answer = await connection.ask(HONEST)
                except LOST:
                    record.answered(NO_ANSWER, 0.0)
                    break
                record.answered(answer.status, answer.seconds)
                await asyncio.sleep(HONEST_PAUSE_S)
                if over.is_set():
                    return


async def beside_honest(
    port: int, record: Record, visits: Iterable[Coroutine[Any, Any, tuple[int, float]]], *, anew: bool = True
) -> list[tuple[int, float]]:
    """What the visits found while honest clients ask, one over one connection, one over ever new ones."""
    over = asyncio.Event()
    honest = [asyncio.create_task(_ask_on(port, record, over, 1_000_000))]
    if anew:
        honest.append(asyncio.create_task(_ask_on(port, record, over, 1)))
    await asyncio.sleep(5 * HONEST_PAUSE_S)  # for theirs to be there first
    try:
        return await asyncio.gather(*visits)
    finally:
        over.set()
        await asyncio.gather(*honest)


async def _silent(port: int, index: int) -> tuple[int, float]:
    await asyncio.sleep(index * OPENING_PAUSE_S)
    return await SILENT.visit(port)


def _pester(running: RunningService, record: Record, limit_s: float, each: int, idle: int) -> None:
    """Every kind of pest, and connections on which nothing happens, all at the same time."""
    visits = [pest.visit(running.port) for pest in PESTS for _ in range(each)]
    silent = [_silent(running.port, index) for index in range(idle)]
    found = asyncio.run(beside_honest(running.port, record, [*visits, *silent]))
    for index, pest in enumerate(PESTS):
        _judge(record, pest.name, found[index * each : (index + 1) * each], {pest.told}, limit_s)
    _judge(record, f"{idle:,} silent connections", found[len(visits) :], {0}, limit_s)


def _judge(record: Record, name: str, found: list[tuple[int, float]], told: set[int], limit_s: float) -> None:
    statuses, longest = Counter(status for status, _ in found), max(seconds for _, seconds in found)
    figure = ", ".join(f"{count:,} x {status or 'closed'}" for status, count in sorted(statuses.items()))
    met = statuses.keys() == told and longest < PATIENCE_S
    record.check(f"{name}: {' and '.join(str(t or 'closed') for t in sorted(told))}", figure, met)
    record.check(f"{name}: let go in {limit_s:g} s", f"{longest:.1f} s", longest <= limit_s, quiet=True)


def _crowd(running: RunningService, record: Record, root: Path, limit_s: float, most: int) -> None:
    """More silent connections than are allowed, and a new version among them."""
    beyond = most // 10
    write_classifier(root, 2)
    running.signal(signal.SIGHUP)
    visits = [_silent(running.port, index) for index in range(most + beyond)]
    found = asyncio.run(beside_honest(running.port, record, visits, anew=False))
    _judge(record, f"{len(visits):,} silent connections", found, {0, 503}, limit_s)
    refused = sum(status == 503 for status, _ in found)
    record.check(f"at most {most:,} connections", f"{refused} refused", refused >= beyond)

    def version() -> int:
        return int(running.client.get(f"/models/{CLASSIFIER}").json()["version"])

    settle(lambda: version() == 2, PATIENCE_S)
    record.check("a new version is loaded all the same", f"version {version()}", version() == 2)


def _deaf(running: RunningService, record: Record, limit_s: float, each: int) -> None:
    """Ask for megabytes and do not read them: seen from the service, since the client sees nothing."""

    def answered() -> float:
        return running.metric("quatserve_requests_total", route="/segment", status="200")

    wanted, before = answered() + each, open_files(running)
    deaf = [deaf_client(running) for _ in range(each)]
    settle(lambda: answered() >= wanted, PATIENCE_S)
    seconds = settle(lambda: open_files(running) <= before, PATIENCE_S)
    left = open_files(running) - before
    for connection in deaf:
        connection.close()
    record.check("answers that nobody reads: cut off", f"{left} of {each} connections left", left == 0)
    record.check(
        f"answers that nobody reads: let go in {limit_s:g} s",
        f"{seconds:.1f} s",
        seconds <= limit_s,
        quiet=True,
    )


def attack(root: Path, *, each: int, idle: int, timeout_s: float) -> Record:
    """So many pests of each kind, and so many idle connections; there is room for them and a few more."""
    write_both(root)
    most = idle + len(PESTS) * each + 24
    allow_open_files(most)  # here, for the clients
    record, limit_s = Record("slow, endless, lying, silent and deaf clients"), timeout_s + LINGER_S + 2
    settings = dict.fromkeys(("upload_timeout_s", "header_timeout_s", "answer_timeout_s"), timeout_s)
    with under_attack(
        record,
        root,
        ("-c", FEW_FILES),
        **settings,
        max_connections=most,
        max_body_bytes=MAX_BODY_BYTES,
        access_log=False,
    ) as running:
        asyncio.run(pour(running.port, [(None, ASK)] * each, each, lambda *_: None))  # to be warm
        with measured(record, running):
            _pester(running, record, limit_s, each, idle)
            _crowd(running, record, root, limit_s, most)
            _deaf(running, record, limit_s, each)
    served = record.count(200)
    record.check("honest clients are served meanwhile", record.statuses(), record.total() == served > 0)
    slowest = record.quantile_s(0.99)
    promise = f"honest clients: p99 within {HONEST_WITHIN_S:g} s"
    record.check(promise, f"{slowest:.3f} s", slowest <= HONEST_WITHIN_S, quiet=True)
    return record

"""Version after version under load, some of them broken: no request fails, the broken ones are refused."""

import asyncio
import json
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx

from tests.service.artifacts import (
    CLASSIFIER,
    write_classifier,
    write_nan,
    write_torn_probe,
    write_truncated,
    write_wrong_digest,
)
from tests.service.harness import RunningService, plain
from tests.stress.connection import LOST, NO_ANSWER, Connection, post
from tests.stress.counted_service import PROGRAM, census
from tests.stress.record import Record, measured, settle, under_attack

CLIENTS = 8
SWAP_LIMIT_S = 20.0
BROKEN = {  # by the last digit of the version, with a word of the reason
    3: (write_truncated, "sha256"),
    5: (write_torn_probe, "npz"),
    6: (write_wrong_digest, "sha256"),
    9: (write_nan, "finite"),
}
TENSOR = {"name": "images", "datatype": "UINT8", "shape": [1, 32, 32, 3], "data": [9] * 3072}
REQUESTS = (
    post("/classify", plain((200, 60, 40))),
    post(f"/v2/models/{CLASSIFIER}/infer", json.dumps({"inputs": [TENSOR]}).encode(), "application/json"),
)


class Clients:
    """Ask without a pause and remember which version answered."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._over = False
        self.versions: set[int] = set()
        self.backwards = 0

    async def run(self, port: int) -> None:
        """One in two by either protocol."""
        await asyncio.gather(*(self._client(port, REQUESTS[i % 2]) for i in range(CLIENTS)))

    async def _client(self, port: int, request: bytes) -> None:
        latest = 0
        async with Connection(port) as connection:
            while not self._over:
                try:
                    answer = await connection.ask(request)
                except LOST:
                    self._record.answered(NO_ANSWER, 0.0)
                    return
                self._record.answered(answer.status, answer.seconds)
                if answer.status == 200:
                    body = json.loads(answer.body)
                    version = int(body.get("version") or body["model_version"])
                    self.versions.add(version)
                    self.backwards += version < latest
                    latest = version

    async def beside(self, port: int, work: Callable[[], None]) -> None:
        """Ask while the work is done on a thread."""
        asking = asyncio.create_task(self.run(port))
        try:
            await asyncio.to_thread(work)
        finally:
            self._over = True
            await asking


class Releases:
    """New versions, one after the other, each put into place at once as a deployment would."""

    def __init__(self, running: RunningService, root: Path) -> None:
        self._running, self._root = running, root
        self.reasons: dict[int, str] = {}  # of the versions refused
        self.good = 0

    def publish(self, versions: range) -> None:
        for version in versions:
            write, _ = BROKEN.get(version % 10, (write_classifier, ""))
            staged = write(self._root / "staging", version)
            staged.rename(self._root / "models" / CLASSIFIER / str(version))
            self._running.signal(signal.SIGHUP)
            settle(partial(self._decided, version), SWAP_LIMIT_S)

    def _decided(self, version: int) -> bool:
        found = httpx.get(f"{self._running.url}/models").json()
        self.reasons |= {refused["version"]: refused["reason"] for refused in found["refused"]}
        served = found["models"][0]["version"] == version
        self.good += served
        return served or version in self.reasons


def attack(root: Path, *, swaps: int) -> Record:
    write_classifier(root / "models")
    record, warm = Record(f"{swaps} new versions under load"), swaps // 5
    with under_attack(record, root / "models", PROGRAM, access_log=False) as running:
        clients, releases = Clients(record), Releases(running, root)
        asyncio.run(
            Clients(Record("warm")).beside(running.port, lambda: releases.publish(range(2, 2 + warm)))
        )
        alive = census(running)
        with measured(record, running):
            last = range(2 + warm, 2 + swaps)
            asyncio.run(clients.beside(running.port, lambda: releases.publish(last)))
        settle(lambda: census(running).within(alive))
        after = census(running)
        record.check(
            "no task, thread or file is left behind", f"before: {alive}; after: {after}", after.within(alive)
        )
    _judge(record, clients, releases, swaps)
    return record


def _judge(record: Record, clients: Clients, releases: Releases, swaps: int) -> None:
    served = record.count(200)
    record.check("no request fails", record.statuses(), record.total() == served > 0)
    broken = {version: BROKEN[version % 10][1] for version in range(2, 2 + swaps) if version % 10 in BROKEN}
    explained = sum(word in releases.reasons.get(version, "") for version, word in broken.items())
    figure = f"{explained} of {len(broken)} with the reason"
    record.check(
        "the broken ones are refused, and why", figure, explained == len(broken) == len(releases.reasons)
    )
    good = swaps - len(broken)
    record.check("every other one takes over", f"{releases.good} of {good}", releases.good == good)
    record.check(
        "nobody is answered by an older version after a newer one", clients.backwards, clients.backwards == 0
    )
    record.check_memory()

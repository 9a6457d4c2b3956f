"""Half of the clients leave: uploading, queued, or while their image runs. The others notice nothing."""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path

import numpy as np

from tests.service.artifacts import CLASSIFIER, LABELS, write_classifier
from tests.service.harness import RunningService, plain, wait_until
from tests.stress.connection import LOST, NO_ANSWER, Connection, post
from tests.stress.counted_service import PROGRAM, census
from tests.stress.record import Record, measured, settle, under_attack

MAX_BATCH, QUEUE_IMAGES, QUEUE_TIMEOUT_S = 4, 64, 10.0
STAYING, LEAVING = 16, 16  # clients at a time; those who leave come back as somebody else
QUEUED_S = 0.01  # less than the others in front take: whoever stays no longer is not yet run
ROUNDS = 20  # of idle work in the model: a batch takes some ten milliseconds
LARGE_BYTES = 200_000  # more than the server reads at once
COLOURS = {"red": (220, 40, 40), "green": (40, 220, 40), "blue": (40, 40, 220)}


class Clients:
    """Some who stay and check that the answer is theirs, some who leave at a random point."""

    def __init__(self, running: RunningService, record: Record, until: float) -> None:
        self._port, self._record, self._until = running.port, record, until
        self._rng = np.random.default_rng(0)
        self.left: Counter[str] = Counter()
        self.mixed_up = 0
        self._latest_s = 0.05  # that somebody waited

    async def run(self) -> None:
        stayers = [self._stay(LABELS[index % 3]) for index in range(STAYING)]
        await asyncio.gather(*stayers, *(self._leave() for _ in range(LEAVING)))

    async def _stay(self, label: str) -> None:
        request = post("/classify", plain(COLOURS[label]))
        async with Connection(self._port) as connection:
            while time.monotonic() < self._until:
                try:
                    answer = await connection.ask(request)
                except LOST:
                    self._record.answered(NO_ANSWER, 0.0)
                    return
                self._record.answered(answer.status, answer.seconds)
                self._latest_s = answer.seconds
                if answer.status == 200:
                    best = json.loads(answer.body)["results"][0]["predictions"][0]["label"]
                    self.mixed_up += best != label

    async def _leave(self) -> None:
        requests = [post("/classify", plain(COLOURS["red"]) + bytes(padding)) for padding in (0, LARGE_BYTES)]
        await asyncio.sleep(0.2)  # until the others fill the queue
        while time.monotonic() < self._until:
            request = requests[self._rng.integers(2)]
            point = ("upload", "queue", "run")[self._rng.integers(3)]
            cut = int(self._rng.integers(1, len(request))) if point == "upload" else len(request)
            async with Connection(self._port) as connection:
                connection.writer.write(request[:cut])
                await connection.writer.drain()
                sent = time.monotonic()
                await asyncio.sleep(self._patience_s(point))
                stayed_s = time.monotonic() - sent
            self.left["run" if point == "queue" and stayed_s > QUEUED_S else point] += 1

    def _patience_s(self, point: str) -> float:
        """In the queue: far less than one run takes. Later: any part of what the others wait."""
        return QUEUED_S / 5 if point == "queue" else float(self._rng.uniform(0, self._latest_s))


def images_run(running: RunningService) -> int:
    return int(running.metric("quatserve_batch_images_sum", model=CLASSIFIER))


def idle(running: RunningService) -> bool:
    return running.metric("quatserve_admitted_images", model=CLASSIFIER) == 0


def attack(root: Path, *, seconds: float) -> Record:
    write_classifier(root, rounds=ROUNDS)
    record = Record("clients that leave")
    settings = {"max_batch": MAX_BATCH, "queue_images": QUEUE_IMAGES, "queue_timeout_s": QUEUE_TIMEOUT_S}
    with under_attack(record, root, PROGRAM, **settings, threads=1, access_log=False) as running:
        asyncio.run(Clients(running, Record("warm"), time.monotonic() + 0.2 * seconds).run())
        wait_until(lambda: idle(running))
        alive, computed = census(running), images_run(running)
        clients = Clients(running, record, time.monotonic() + seconds)
        with measured(record, running):
            asyncio.run(clients.run())
            wait_until(lambda: idle(running))
        computed = images_run(running) - computed
        _judge(record, clients, computed)
        settle(lambda: census(running).within(alive))
        after = census(running)
        held = f"before: {alive}; after: {after}"
        record.check("no task, future, thread or file is left behind", held, after.within(alive))
    return record


def _judge(record: Record, clients: Clients, computed: int) -> None:
    served, left = record.count(200), clients.left
    record.check("every client that stays is served", record.statuses(), record.total() == served > 0)
    record.check("each with its own answer", f"{clients.mixed_up} mixed up", clients.mixed_up == 0)
    wasted = computed - served
    record.check(
        "no more is computed for nobody than left in the middle of a run",
        f"{left['upload']:,} left uploading, {left['queue']:,} queued, {left['run']:,} later; "
        f"{wasted:,} images computed for nobody",
        0 <= wasted <= left["run"] and min(left.values()) > 0,
    )
    bound_s = QUEUE_TIMEOUT_S
    p99_s = record.quantile_s(0.99)
    record.check(
        f"p99 within the queue timeout of {bound_s:g} s", f"{p99_s:.2f} s", p99_s <= bound_s, quiet=True
    )
    record.check_memory()

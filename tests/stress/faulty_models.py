"""A model that raises, returns the wrong shape, hangs, or hangs for good: each as the service promises."""

import asyncio
import json
import math
import time
from pathlib import Path

from quatserve.service.web.server import EXIT_STUCK
from tests.service.artifacts import CLASSIFIER, write_both
from tests.service.faulty_service import ENDLESS, RAISES, STUCK, WRONG_SHAPE
from tests.service.harness import RunningService
from tests.service.web.test_faults import PROGRAM, telling
from tests.stress.connection import Answer, post, pour
from tests.stress.record import Record, measured, settle

SIZE = (32, 32)  # of the classifier's input
HARMLESS = 200  # a value that is no command
DEADLINE_S, STUCK_AFTER_S = 2.0, 1.0
SLACK_S = 1.0
LOG_LIMIT_S = 2.0


def as_image(command: int) -> bytes:
    return post("/classify", telling(command))


def as_tensor(command: int) -> bytes:
    """The same through the Open Inference Protocol."""
    tensor = {
        "name": "images",
        "datatype": "UINT8",
        "shape": [1, *SIZE, 3],
        "data": [command] * math.prod((*SIZE, 3)),
    }
    body = json.dumps({"inputs": [tensor]}).encode()
    return post(f"/v2/models/{CLASSIFIER}/infer", body, "application/json")


def _ask(running: RunningService, record: Record, request: bytes, count: int = 1) -> list[tuple[int, str]]:
    """Status and problem of each answer, one request after the other."""
    found: list[tuple[int, str]] = []

    def told(_: None, answer: Answer) -> None:
        record.answered(answer.status, answer.seconds)
        found.append((answer.status, json.loads(answer.body).get("type", "").rpartition(":")[2]))

    asyncio.run(pour(running.port, [(None, request)] * count, 1, told))
    return found


def _fails_each_time(running: RunningService, record: Record, times: int) -> None:
    """Faults between good requests, one after the other."""
    for name, command in {"raises": RAISES, "returns the wrong shape": WRONG_SHAPE}.items():
        faults, others = set[tuple[int, str]](), set[int]()
        for make in (as_image, as_tensor) * times:
            faults.update(_ask(running, record, make(command)))
            others.update(status for status, _ in _ask(running, record, make(HARMLESS)))
        met = faults == {(500, "model-failure")} and others == {200}
        record.check(f"{name}: 500, and the next is served", f"{2 * times} times", met)
    failed, end = record.count(500), time.monotonic() + LOG_LIMIT_S
    while (logged := running.log().count('"request failed"')) < failed and time.monotonic() < end:
        time.sleep(0.01)  # lines are written by a thread of their own
    record.check("every 500 is explained in the log", f"{logged} of {failed}", logged == failed > 0)


def _hangs(running: RunningService, record: Record, times: int) -> None:
    begun = time.monotonic()
    found = _ask(running, record, as_image(ENDLESS), times)
    each_s = (time.monotonic() - begun) / times
    record.check("hangs: 504", f"{times} times", set(found) == {(504, "deadline")})
    promise = f"hangs: within the deadline of {DEADLINE_S:g} s and {SLACK_S:g} s"
    record.check(promise, f"{each_s:.2f} s on average", each_s <= DEADLINE_S + SLACK_S, quiet=True)
    status, _ = _ask(running, record, as_image(HARMLESS))[0]
    record.check("hangs: the next is served", status, status == 200)


def _is_stuck(running: RunningService, record: Record) -> None:
    found = _ask(running, record, as_image(STUCK))
    record.check("does not stop when told to: 504", found[0][0], found == [(504, "deadline")])
    settle(lambda: running.client.get("/readyz").status_code == 503)
    ready = running.client.get("/readyz").json()
    record.check(
        "then: not ready, and says that it is stuck",
        f"stuck {ready['stuck']}",
        ready["stuck"] and not ready["ready"],
    )
    code = running.process.wait(STUCK_AFTER_S + 10)
    record.check(f"then: exit code {EXIT_STUCK}", code, code == EXIT_STUCK)


def attack(root: Path, *, times: int) -> Record:
    write_both(root)
    record = Record("a model that raises, lies or hangs")
    running = RunningService(
        root, PROGRAM, deadline_s=DEADLINE_S, stuck_after_s=STUCK_AFTER_S, access_log=False
    )
    try:
        _ask(running, Record("warm"), as_image(HARMLESS), times)
        with measured(record, running):
            _fails_each_time(running, record, times)
            _hangs(running, record, min(times, 3))
        _is_stuck(running, record)
    finally:
        running.stop()
    record.check_memory()
    return record

"""The end of a process under load: told to stop, it answers what it accepted; killed, it damages nothing."""

import asyncio
import hashlib
import json
import signal
import time
from functools import partial
from pathlib import Path

from tests.service.artifacts import write_classifier
from tests.service.harness import RunningService, plain
from tests.stress.connection import LOST, NO_ANSWER, Connection, post
from tests.stress.record import Record, settle

CLIENTS = 32
LOAD_S = 1.0  # before the signal
DRAIN_TIMEOUT_S = 20.0
ENDED_WITHIN_S = 5.0  # of the signal: its limit is for work that lasts, not for clients that go on asking
READY_WITHIN_S = 10.0  # as service/README.md says
ROUNDS = 20  # of idle work in the model: a batch takes some ten milliseconds
RED = plain((200, 60, 40))


class Load:
    """Clients that ask until their connection is lost, each request under a name of its own."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.told: dict[str, int] = {}  # request id -> status

    async def around(self, running: RunningService, number: signal.Signals) -> None:
        """Ask before, during and after the signal, as long as anybody listens."""
        asyncio.get_running_loop().call_later(LOAD_S, running.signal, number)
        await asyncio.gather(*(self._client(running.port, name) for name in range(CLIENTS)))

    async def _client(self, port: int, name: int) -> None:
        async with Connection(port) as connection:
            for count in range(100_000):  # the connection ends before
                request_id = f"{name}-{count}"
                begun = time.perf_counter()
                try:
                    answer = await connection.ask(post("/classify", RED, x_request_id=request_id))
                except LOST:
                    self._tell(request_id, NO_ANSWER, time.perf_counter() - begun)
                    return
                self._tell(request_id, answer.status, answer.seconds)

    def _tell(self, request_id: str, status: int, seconds: float) -> None:
        self.told[request_id] = status
        self._record.answered(status, seconds)


def logged(running: RunningService) -> list[dict[str, object]]:
    """The service's lines; onnxruntime writes some of its own to the same stream."""
    return [json.loads(line) for line in running.log().splitlines() if line.startswith("{")]


def terminate(root: Path, *, times: int) -> Record:
    """SIGTERM: the service's own log says what it accepted, the clients say what they were told."""
    write_classifier(root, rounds=ROUNDS)
    record = Record("SIGTERM under load")
    accepted = unanswered = late = 0
    codes, ends, begun = set[int](), list[float](), time.monotonic()
    for _ in range(times):
        load = Load(record)
        running = RunningService(root, threads=1, max_batch=4, drain_timeout_s=DRAIN_TIMEOUT_S)
        asked = time.monotonic()
        asyncio.run(load.around(running, signal.SIGTERM))
        codes.add(running.process.wait(DRAIN_TIMEOUT_S + 10))
        ends.append(time.monotonic() - asked - LOAD_S)
        lines = logged(running)
        running.stop()
        statuses = {str(line["request_id"]): line["status"] for line in lines if line["message"] == "request"}
        accepted += sum(int(str(line["accepted"])) for line in lines if line["message"] == "draining")
        unanswered += sum(load.told.get(name) != status for name, status in statuses.items())
        late += sum(status == NO_ANSWER and name in statuses for name, status in load.told.items())
    record.seconds = time.monotonic() - begun
    record.check("work is under way at the signal", f"{accepted:,} requests accepted", accepted > 0)
    record.check("every accepted request is answered", f"{unanswered + late} not", unanswered + late == 0)
    others = record.by_status_s.keys() - {200, 503, NO_ANSWER}
    record.check("served, refused because of the end, or never accepted", record.statuses(), not others)
    promise = f"ended within {ENDED_WITHIN_S:g} s, though clients go on asking"
    record.check(promise, f"slowest {max(ends):.1f} s", max(ends) <= ENDED_WITHIN_S, quiet=True)
    record.check("exit code 0", sorted(codes), codes == {0})
    return record


def digests(root: Path) -> dict[Path, str]:
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in root.rglob("*") if path.is_file()}


def is_ready(running: RunningService) -> bool:
    return running.client.get("/readyz").status_code == 200


def kill(root: Path, *, times: int, models_dir: Path | None = None) -> Record:
    """SIGKILL: soon served again, on the same port, from the same files; tiny ones unless told otherwise."""
    models = models_dir or root
    if models_dir is None:
        write_classifier(root, rounds=ROUNDS)
    record, before = Record("kill -9 and restart"), digests(models)
    running, begun, waits = RunningService(models), time.monotonic(), list[float]()
    for _ in range(times):
        asyncio.run(Load(record).around(running, signal.SIGKILL))
        running.process.wait(10)
        port = running.port
        running.stop()
        restarted = time.monotonic()
        running = RunningService(models, port=port)
        settle(partial(is_ready, running), READY_WITHIN_S)
        waits.append(time.monotonic() - restarted)
    served = running.client.post("/classify", files={"file": RED}).status_code == 200
    code = running.stop()
    record.seconds = time.monotonic() - begun
    record.check(
        "it serves again, on the same port", f"{times} restarts, exit code {code}", served and code == 0
    )
    slowest = max(waits)
    promise = f"ready again within {READY_WITHIN_S:g} s"
    record.check(promise, f"slowest {slowest:.1f} s", slowest <= READY_WITHIN_S, quiet=True)
    same = digests(models) == before
    record.check("every file of the models is as it was", f"{len(before)} files", same)
    return record

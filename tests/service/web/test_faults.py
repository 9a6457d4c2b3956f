"""Models that raise, hang or return wrong shapes; clients that disconnect; overload."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from quatserve.service.engine.batcher import MAX_FAILURES
from quatserve.service.web.server import EXIT_STUCK
from tests.service import faulty_service
from tests.service.artifacts import CLASSIFIER
from tests.service.conftest import Start
from tests.service.faulty_service import (
    BREAKS,
    COSTLY_WIDTH,
    ENDLESS,
    HELD,
    HOLD_FILE,
    RAISES,
    STUCK,
    WRONG_SHAPE,
)
from tests.service.harness import Background, RunningService, plain, wait_until

PROGRAM = (faulty_service.__file__,)
GOOD = plain((200, 60, 40))


def telling(command: int) -> bytes:
    return plain((command, 0, 0))


@pytest.fixture(scope="module")
def faulty(models_dir: Path) -> Iterator[RunningService]:
    running = RunningService(
        models_dir,
        PROGRAM,
        max_batch=4,
        max_batch_s=60,  # so that max_batch stays 4 on a slow machine
        queue_images=4,
        max_images=4,
        deadline_s=60,
        queue_timeout_s=60,
    )
    yield running
    assert running.stop() == 0


def post(running: RunningService, data: bytes) -> httpx.Response:
    return httpx.post(f"{running.url}/classify", files={"file": data}, timeout=20)


def works(running: RunningService) -> bool:
    return post(running, GOOD).status_code == 200


@pytest.mark.parametrize("command", [RAISES, WRONG_SHAPE])
def test_a_failing_model_is_a_500_without_its_reason(faulty: RunningService, command: int) -> None:
    response = post(faulty, telling(command))
    assert (response.status_code, response.json()["type"]) == (500, "urn:quatserve:problem:model-failure")
    assert "told to" not in response.text
    wait_until(lambda: response.json()["request_id"] in faulty.log())  # with the reason
    assert works(faulty)


def test_a_valid_image_that_finds_no_memory_is_a_503_with_a_log_line(faulty: RunningService) -> None:
    response = post(faulty, plain((0, 0, 0), (COSTLY_WIDTH, 8)))
    assert (response.status_code, response.json()["type"]) == (503, "urn:quatserve:problem:out-of-memory")
    assert "retry-after" in response.headers
    wait_until(lambda: response.json()["request_id"] in faulty.log())
    assert works(faulty)


def failed_runs(running: RunningService) -> float:
    return running.metric("quatserve_failed_runs_total", model=CLASSIFIER)


def test_repeated_failures_of_bad_images_do_not_end_the_process(faulty: RunningService) -> None:
    before, count = failed_runs(faulty), 2 * MAX_FAILURES + 1
    assert {post(faulty, telling(RAISES)).status_code for _ in range(count)} == {500}
    assert failed_runs(faulty) - before == count
    assert faulty.client.get("/readyz").status_code == 200
    assert works(faulty)


def test_a_model_that_fails_every_run_and_its_probe_ends_the_process(start: Start) -> None:
    running = start(program=PROGRAM)
    answers = [post(running, data) for data in [telling(BREAKS), *[GOOD] * (MAX_FAILURES - 1)]]
    assert {answer.status_code for answer in answers} == {500}
    wait_until(lambda: running.client.get("/readyz").status_code == 503)
    assert running.client.get("/readyz").json()["stuck"]
    assert failed_runs(running) == MAX_FAILURES
    assert post(running, GOOD).status_code == 503
    assert running.process.wait(20) == EXIT_STUCK
    assert "the model is broken: RuntimeError: told to raise" in running.log()
    running.stop()


def raw_request(data: bytes) -> bytes:
    lines = ["POST /classify HTTP/1.1", "Host: x", "Content-Type: image/png", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode() + data


def images_run(running: RunningService) -> float:
    return running.metric("quatserve_batch_images_sum", model=CLASSIFIER)


class Busy:
    """Occupies the model with one run until `free` is called."""

    def __init__(self, running: RunningService, models_dir: Path) -> None:
        self._hold = models_dir / HOLD_FILE
        self._hold.touch()
        self._work = Background(lambda: post(running, telling(HELD)))
        wait_for_run(running)

    def free(self) -> httpx.Response:
        self._hold.unlink()
        response = self._work.result()
        assert isinstance(response, httpx.Response)
        return response


def wait_for_admitted(running: RunningService, count: int) -> None:
    wait_until(lambda: running.metric("quatserve_admitted_images", model=CLASSIFIER) == count)


def wait_for_run(running: RunningService) -> None:
    """Wait until the only image is in the run."""
    wait_for_admitted(running, 1)
    wait_until(lambda: running.metric("quatserve_queue_images", model=CLASSIFIER) == 0)


def test_a_client_that_leaves_with_two_pipelined_requests_causes_no_error(
    start: Start, models_dir: Path
) -> None:
    """uvicorn reports a disconnect to the last request only; the first would be logged as an error."""
    running = start(program=PROGRAM, deadline_s=60, queue_timeout_s=60)
    busy = Busy(running, models_dir)
    with socket.create_connection(("127.0.0.1", running.port)) as leaving:
        leaving.sendall(2 * raw_request(GOOD))
        wait_for_admitted(running, 2)
    wait_for_admitted(running, 1)
    assert busy.free().status_code == 200
    assert running.metric("quatserve_requests_total", route="/classify", status="499") == 1
    assert '"level":"error"' not in running.log()


def test_images_of_clients_that_leave_the_queue_are_not_run(faulty: RunningService, models_dir: Path) -> None:
    before = images_run(faulty)
    busy = Busy(faulty, models_dir)
    leaving = [socket.create_connection(("127.0.0.1", faulty.port)) for _ in range(3)]
    for connection in leaving:
        connection.sendall(raw_request(GOOD))
    staying = Background(lambda: post(faulty, GOOD))
    wait_for_admitted(faulty, 5)
    for connection in leaving:
        connection.close()
    wait_for_admitted(faulty, 2)
    assert busy.free().status_code == 200
    assert staying.result().status_code == 200
    assert images_run(faulty) - before == 2  # the image in the run, and that of the client that stayed
    assert faulty.metric("quatserve_requests_total", route="/classify", status="499") == 3
    assert faulty.metric("quatserve_admitted_images", model=CLASSIFIER) == 0


def test_a_run_whose_client_leaves_is_terminated(faulty: RunningService) -> None:
    with socket.create_connection(("127.0.0.1", faulty.port)) as connection:
        connection.sendall(raw_request(telling(ENDLESS)))
        wait_for_run(faulty)
    assert works(faulty)  # otherwise it would wait longer than the 20 s of this client


def test_a_full_queue_refuses_at_once(faulty: RunningService, models_dir: Path) -> None:
    busy = Busy(faulty, models_dir)
    queued = [
        Background(lambda: post(faulty, GOOD)) for _ in range(7)
    ]  # with the image in the run: a full queue and a full batch
    wait_for_admitted(faulty, 8)
    response = post(faulty, GOOD)  # while the model is still in its run
    assert (response.status_code, response.json()["type"]) == (503, "urn:quatserve:problem:queue-full")
    assert int(response.headers["retry-after"]) >= 1
    assert faulty.metric("quatserve_rejections_total", reason="queue-full") >= 1
    assert faulty.metric("quatserve_queue_images", model=CLASSIFIER) == 7
    assert busy.free().status_code == 200
    assert [work.result().status_code for work in queued] == [200] * 7
    assert works(faulty)  # the queue has room again


def test_a_request_needs_room_for_all_its_images(faulty: RunningService, models_dir: Path) -> None:
    busy = Busy(faulty, models_dir)
    queued = [Background(lambda: post(faulty, GOOD)) for _ in range(4)]
    wait_for_admitted(faulty, 5)
    four = [("files", GOOD)] * 4
    assert httpx.post(f"{faulty.url}/classify", files=four).status_code == 503
    assert busy.free().status_code == 200
    assert [work.result().status_code for work in queued] == [200] * 4
    assert httpx.post(f"{faulty.url}/classify", files=four).status_code == 200


def test_a_run_past_its_deadline_is_terminated_and_one_that_goes_on_ends_the_process(start: Start) -> None:
    running = start(program=PROGRAM, deadline_s=2, stuck_after_s=1.5)
    begun = time.monotonic()
    response = post(running, telling(ENDLESS))
    assert (response.status_code, response.json()["type"]) == (504, "urn:quatserve:problem:deadline")
    assert time.monotonic() - begun > 1.9
    assert works(running)  # the thread is free again
    assert post(running, telling(STUCK)).status_code == 504
    wait_until(lambda: httpx.get(f"{running.url}/readyz").status_code == 503, 5)
    body = httpx.get(f"{running.url}/readyz").json()
    assert (body["ready"], body["stuck"]) == (False, True)
    assert post(running, GOOD).status_code == 503
    assert running.process.wait(20) == EXIT_STUCK
    assert "a run does not return" in running.log()
    running.stop()

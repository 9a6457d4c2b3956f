"""Clients that ask and do not read: bounded in time and, together, in bytes."""

import socket
import time
from pathlib import Path

import pytest

from tests.service.conftest import Start
from tests.service.harness import RunningService, encoded, noise, wait_until
from tests.stress.connection import post

PHOTO = encoded(noise(2400, 1200) // 64 * 64, "JPEG")  # its overlay is 9 MB: more than the system buffers
ASK = post("/segment?output=overlay", PHOTO, "image/jpeg")


def deaf_client(running: RunningService) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", running.port), timeout=20)
    connection.sendall(ASK)
    return connection


def open_files(running: RunningService) -> int:
    return len(list(Path(f"/proc/{running.process.pid}/fd").iterdir()))


def wait_for_answers(running: RunningService, count: int) -> None:
    wait_until(
        lambda: running.metric("quatserve_requests_total", route="/segment", status="200") == count, 30
    )


def missing_bytes(connection: socket.socket) -> int:
    """How much of the answer does not come when it is read at last."""
    with connection, connection.makefile("rb") as stream:
        while (line := stream.readline().strip()) != b"":
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return length - len(stream.read(length))


@pytest.mark.parametrize("bound", [{"answer_timeout_s": 0.5}, {"answer_memory_bytes": 1000}])
def test_an_answer_that_nobody_reads_is_given_up(start: Start, bound: dict[str, float]) -> None:
    running = start(**bound)
    wait_for_answers(running, 0)  # which opens the connection that asks
    before = open_files(running)
    with deaf_client(running):
        wait_for_answers(running, 1)
        wait_until(lambda: open_files(running) == before)


def test_the_longest_unread_answer_is_given_up_first(start: Start) -> None:
    running = start(answer_memory_bytes=16_000_000)
    deaf = []
    for count in range(1, 5):
        deaf.append(deaf_client(running))
        wait_for_answers(running, count)
    lost = [missing_bytes(connection) for connection in deaf]
    assert lost[0] > 0
    assert lost[-1] == 0


def test_a_slow_reader_gets_its_whole_answer(start: Start) -> None:
    running = start(keep_alive_s=0.3)
    connection = deaf_client(running)
    wait_for_answers(running, 1)
    time.sleep(1)  # longer than an idle connection is kept
    assert missing_bytes(connection) == 0

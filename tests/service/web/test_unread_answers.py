"""Clients that do not read their responses: bounded in time and, together, in bytes."""

import asyncio
import functools
import signal
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvicorn
import uvloop
from uvicorn.server import ServerState

from quatserve.service.settings import Settings
from quatserve.service.telemetry.metrics import Metrics
from quatserve.service.web.protocol import bounded_protocol
from quatserve.service.web.refusals import Refusals
from tests.service.artifacts import CLASSIFIER
from tests.service.conftest import Start
from tests.service.harness import RunningService, encoded, noise, plain, wait_until
from tests.stress.connection import post

PHOTO = encoded(noise(2400, 1200) // 64 * 64, "JPEG")  # its overlay has 9 MB, more than the socket buffers
ASK = post("/segment?output=overlay", PHOTO, "image/jpeg")


@pytest.fixture
def begin(start: Start) -> Start:
    """A service whose deadline allows an overlay on a slow machine."""
    return functools.partial(start, deadline_s=60)


def deaf_client(running: RunningService) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", running.port), timeout=20)
    connection.sendall(ASK)
    return connection


def open_files(running: RunningService) -> int:
    return len(list(Path(f"/proc/{running.process.pid}/fd").iterdir()))


def wait_for_answers(running: RunningService, count: int) -> None:
    wait_until(
        lambda: running.metric("quatserve_requests_total", route="/segment", status="200") == count, 60
    )


def missing_bytes(connection: socket.socket) -> int:
    """The part of the response that is missing when it is read at last."""
    with connection, connection.makefile("rb") as stream:
        while (line := stream.readline().strip()) != b"":
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return length - len(stream.read(length))


@pytest.mark.parametrize("bound", [{"answer_timeout_s": 0.5}, {"answer_memory_bytes": 1000}])
def test_a_response_that_nobody_reads_is_dropped(begin: Start, bound: dict[str, float]) -> None:
    running = begin(**bound)
    wait_for_answers(running, 0)  # opens the connection of the metrics client
    before = open_files(running)
    with deaf_client(running):
        wait_for_answers(running, 1)
        wait_until(lambda: open_files(running) == before)


def test_the_longest_unread_response_is_dropped_first(begin: Start) -> None:
    running = begin(answer_memory_bytes=16_000_000)
    deaf = []
    for count in range(1, 5):
        deaf.append(deaf_client(running))
        wait_for_answers(running, count)
    lost = [missing_bytes(connection) for connection in deaf]
    assert lost[0] > 0
    assert lost[-1] == 0


def test_a_slow_reader_gets_its_whole_response(begin: Start) -> None:
    running = begin(keep_alive_s=0.3)
    connection = deaf_client(running)
    wait_for_answers(running, 1)
    time.sleep(1)  # longer than an idle connection is kept
    assert missing_bytes(connection) == 0


def test_a_slow_reader_gets_its_whole_response_during_a_drain(begin: Start) -> None:
    running = begin()
    connection = deaf_client(running)
    wait_for_answers(running, 1)
    running.signal(signal.SIGTERM)
    time.sleep(2.5)  # longer than timeout_graceful_shutdown
    assert missing_bytes(connection) == 0
    assert running.process.wait(10) == 0  # sooner than drain_timeout_s, which is 20 s


def test_a_client_that_does_not_read_cannot_extend_the_drain(begin: Start) -> None:
    running = begin(drain_timeout_s=0.5)
    with deaf_client(running):
        wait_for_answers(running, 1)
        running.signal(signal.SIGTERM)
        assert running.process.wait(15) == 0


@pytest.mark.parametrize("again", [True, False])
def test_a_client_that_neither_reads_nor_sends_cannot_extend_the_drain(begin: Start, again: bool) -> None:
    """Its second request is not read before the response to the first."""
    running = begin(drain_timeout_s=20 if again else 0.5, upload_timeout_s=60)
    with deaf_client(running) as connection:
        wait_for_answers(running, 1)
        connection.sendall(ASK[:2000])
        time.sleep(0.5)
        running.signal(signal.SIGTERM)
        wait_until(lambda: '"draining"' in running.log())
        assert '"accepted":0' in running.log()
        if again:
            running.signal(signal.SIGTERM)
        assert running.process.wait(15) == 0


def test_the_next_request_waits_until_the_response_is_read(begin: Start) -> None:
    """Its response would be kept beside the first, and not be counted."""
    running = begin()
    with deaf_client(running) as connection:
        wait_for_answers(running, 1)
        connection.sendall(post("/classify", plain((200, 60, 40))) * 2)
        time.sleep(1)
        assert running.metric("quatserve_run_seconds_count", model=CLASSIFIER) == 0
        stream = connection.makefile("rb")
        for _ in range(3):
            assert b" 200 " in stream.readline()
            while (line := stream.readline().strip()) != b"":
                if line.startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            assert len(stream.read(length)) == length
        assert running.metric("quatserve_run_seconds_count", model=CLASSIFIER) == 2


def answering(body: bytes) -> Callable[..., Awaitable[None]]:
    """An application that answers every request with this body."""

    async def app(_scope: object, _receive: object, send: Callable[..., Awaitable[None]]) -> None:
        length = str(len(body)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": body})

    return app


def left_of(body: bytes, client: Callable[[int], None], **settings: float) -> tuple[int, int, int]:
    """Answered requests, open connections and unread responses, 1.5 s after a client has finished."""
    protocol, state = bounded_protocol(Settings(**settings), Refusals(Metrics())), ServerState()
    config = uvicorn.Config(
        answering(body), http=protocol, timeout_keep_alive=1, log_config=None, lifespan="off"
    )

    async def scenario() -> tuple[int, int, int]:
        make = lambda: protocol(config=config, server_state=state, app_state={})  # noqa: E731
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        server = await asyncio.get_running_loop().create_server(make, sock=listening)
        await asyncio.to_thread(client, listening.getsockname()[1])
        await asyncio.sleep(1.5)
        left = state.total_requests, len(state.connections), len(protocol.unread)
        for connection in state.connections:
            connection.transport.abort()  # otherwise closing the server waits for it
        server.close()
        return left

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(scenario())


def reset(port: int) -> None:
    """Read one response, then reset the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_a_reset_connection_is_not_kept_among_the_unread() -> None:
    """It would be added when its keep-alive time ends, and never be removed."""
    assert left_of(b"", reset) == (1, 0, 0)


def test_a_last_response_that_nobody_reads_is_dropped() -> None:
    """It is too short to pause writing, and a closing transport waits until the client has read it."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)

        def ask(port: int) -> None:
            connection.connect(("127.0.0.1", port))
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

        assert left_of(bytes(50_000), ask, answer_timeout_s=0.5) == (1, 0, 0)

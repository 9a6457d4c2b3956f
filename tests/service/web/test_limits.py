"""Limits on bytes, pixels, time, memory and connections, over a real socket."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from quatserve.service.web.protocol import MAX_PIPELINED
from tests.service.conftest import Start
from tests.service.harness import RunningService, encoded, noise, plain, wait_until
from tests.service.image_files import png_file

RED = plain((200, 60, 40))


@pytest.fixture(scope="module")
def tight(models_dir: object) -> Iterator[RunningService]:
    running = RunningService(
        models_dir,  # type: ignore[arg-type]
        max_body_bytes=20_000,
        max_image_pixels=10_000,
        upload_timeout_s=0.6,
        upload_memory_bytes=25_000,
        header_timeout_s=0.6,
        keep_alive_s=0.6,
        max_connections=12,
    )
    yield running
    assert running.stop() == 0


def connect(running: RunningService) -> socket.socket:
    return socket.create_connection(("127.0.0.1", running.port), timeout=10)


def head(length: int | str) -> bytes:
    lines = ["POST /classify HTTP/1.1", "Host: x", "Content-Type: image/png", f"Content-Length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode()


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED_HEAD = head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
CHUNK = b"1000\r\n" + b"x" * 4096 + b"\r\n"


def read_answer(connection: socket.socket) -> tuple[int, dict[str, object]]:
    """Status and JSON body of one response, read without an HTTP library."""
    stream = connection.makefile("rb")
    status = int(stream.readline().split()[1])
    length = 0
    while (line := stream.readline().strip()) != b"":
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return status, json.loads(stream.read(length))


def closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_body_with_a_large_declared_length_is_refused_unread(tight: RunningService) -> None:
    with connect(tight) as connection:
        connection.sendall(head(10**9))  # and none of the body
        status, problem = read_answer(connection)
    assert (status, problem["type"]) == (413, "urn:quatserve:problem:body-too-large")


def test_an_endless_body_is_refused_and_the_connection_closed(tight: RunningService) -> None:
    with connect(tight) as connection:
        connection.sendall(CHUNKED_HEAD + 10 * CHUNK)
        assert read_answer(connection)[0] == 413
        begun = time.monotonic()
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            send_without_end(connection)
        assert time.monotonic() - begun < 8


def send_without_end(connection: socket.socket, data: bytes = CHUNK) -> None:
    for _ in range(400):
        connection.sendall(data)
        time.sleep(0.05)


def test_a_client_that_is_refused_while_sending_can_read_the_reason(tight: RunningService) -> None:
    response = tight.client.post("/classify", files={"file": b"x" * 3_000_000})
    assert response.status_code == 413
    assert tight.client.get("/healthz").status_code == 200


def test_too_many_pixels_are_refused_before_decoding(tight: RunningService) -> None:
    empty = png_file(50_000, 50_000, 8, 2, b"")  # decoding it would give another status
    response = tight.client.post("/classify", files={"file": empty})
    assert (response.status_code, response.json()["type"]) == (413, "urn:quatserve:problem:too-many-pixels")
    assert tight.client.post("/classify", files={"file": encoded(noise(100, 100) // 200)}).status_code == 200
    assert tight.client.post("/classify", files={"file": encoded(noise(101, 100) // 200)}).status_code == 413


def test_a_slow_upload_is_refused_and_others_are_served(tight: RunningService) -> None:
    with connect(tight) as connection:
        connection.sendall(head(len(RED)))
        begun = time.monotonic()
        for byte in RED[:3]:
            connection.sendall(bytes([byte]))
            assert tight.client.post("/classify", files={"file": RED}).status_code == 200
            time.sleep(0.05)
        status, problem = read_answer(connection)
        assert (status, problem["type"]) == (408, "urn:quatserve:problem:slow-upload")
        assert time.monotonic() - begun > 0.4


def test_all_uploads_together_are_bounded(start: Start) -> None:
    running = start(max_body_bytes=20_000, upload_memory_bytes=25_000)

    def post_big() -> httpx.Response:
        return running.client.post("/classify", content=b"x" * 15_000, headers={"content-type": "image/png"})

    with connect(running) as connection:
        connection.sendall(head(20_000) + b"x" * 19_000)
        wait_until(lambda: post_big().status_code == 503)  # once the other upload has arrived
        response = post_big()
        assert response.json()["type"] == "urn:quatserve:problem:uploads-full"
        assert int(response.headers["retry-after"]) >= 1
        small = running.client.post("/classify", files={"file": RED})
        assert small.status_code == 200  # it still fits
    wait_until(lambda: post_big().status_code == 400)  # it fits again, and is read


def test_a_silent_connection_is_closed(tight: RunningService) -> None:
    with connect(tight) as silent, connect(tight) as halting:
        halting.sendall(b"GET /healthz HTT")
        begun = time.monotonic()
        assert closed(silent)
        assert closed(halting)
        assert 0.4 < time.monotonic() - begun < 3


def test_an_idle_connection_is_closed_after_its_answer(tight: RunningService) -> None:
    with connect(tight) as connection:
        connection.sendall(HEALTH)
        assert read_answer(connection)[0] == 200
        begun = time.monotonic()
        assert closed(connection)
        assert 0.4 < time.monotonic() - begun < 3


def test_line_breaks_do_not_keep_a_connection_open(tight: RunningService) -> None:
    """The parser skips them before a head, so no request starts."""
    with connect(tight) as silent, connect(tight) as restless:
        for connection in (silent, restless):
            connection.sendall(HEALTH)
            assert read_answer(connection)[0] == 200
            connection.sendall(b"\r\n")
        assert closed(silent)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            send_without_end(restless, b"\r\n")


def test_a_refused_upload_that_stops_sending_is_closed(tight: RunningService) -> None:
    with connect(tight) as connection:
        connection.sendall(head(10**9) + b"x" * 100)
        assert read_answer(connection)[0] == 413
        connection.settimeout(8)
        assert closed(connection)


def test_an_endless_head_is_refused(tight: RunningService) -> None:
    with connect(tight) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: ")
        for _ in range(40):
            connection.sendall(b"a" * 1024)
            time.sleep(0.002)
        status, problem = read_answer(connection)
        assert (status, problem["type"]) == (431, "urn:quatserve:problem:headers-too-large")
        assert closed(connection)


def test_an_endless_trailer_closes_the_connection(service: RunningService) -> None:
    with connect(service) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(CHUNKED_HEAD + b"1\r\nx\r\n0\r\nX-Long: ")
            for _ in range(80):
                connection.sendall(b"a" * 1024)
                time.sleep(0.002)
        assert closed(connection)


def test_body_bytes_are_not_counted_as_the_next_head(service: RunningService) -> None:
    body = RED + bytes(40_000)
    with connect(service) as connection:
        connection.sendall(head(len(body)) + body + HEALTH[:9])
        assert read_answer(connection)[0] == 200
        connection.sendall(HEALTH[9:])
        assert read_answer(connection)[0] == 200


def test_connections_are_limited_and_freed_again(tight: RunningService) -> None:
    tight.client.close()
    wait_until(lambda: _answers(tight), 5)
    many = [connect(tight) for _ in range(30)]
    try:
        refused = 0
        for connection in many:
            connection.settimeout(0.3)
            try:
                refused += read_answer(connection)[0] == 503
            except (TimeoutError, IndexError):
                continue
        assert refused >= 17
    finally:
        for connection in many:
            connection.close()
    wait_until(lambda: _answers(tight), 5)
    tight.client = httpx.Client(base_url=tight.url, timeout=20)


def test_refused_connections_are_all_counted_and_rarely_logged(start: Start) -> None:
    running = start(max_connections=2)
    problems = []
    with connect(running), connect(running):
        for _ in range(10):
            with connect(running) as refused:
                problems.append(read_answer(refused)[1])
    wait_until(lambda: _answers(running), 5)
    assert {problem["type"] for problem in problems} == {"urn:quatserve:problem:too-many-connections"}
    assert len({problem["request_id"] for problem in problems} - {""}) == 10
    assert running.metric("quatserve_rejections_total", reason="too-many-connections") >= 10
    assert running.metric("quatserve_requests_total", route="other", status="503") >= 10
    assert 1 <= running.log().count('"reason":"too-many-connections"') < 10


def _answers(running: RunningService) -> bool:
    return httpx.get(f"{running.url}/healthz").status_code == 200


def test_a_connection_accepts_pipelined_requests(service: RunningService) -> None:
    with connect(service) as connection:
        connection.sendall((head(len(RED)) + RED) * 5)
        assert good_answers(connection, 5) == 5


def test_the_number_of_pipelined_requests_is_limited(service: RunningService) -> None:
    """Each is kept until the one before it is answered, and one read may hold 14,000 of them."""
    with connect(service) as connection:
        connection.sendall(HEALTH * (1 + MAX_PIPELINED))
        assert good_answers(connection, 1 + MAX_PIPELINED) == 1 + MAX_PIPELINED
    with connect(service) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(HEALTH * 5_000)
        stream = connection.makefile("rb")
        assert stream.read().count(b" 200 ") < 100
    assert _answers(service)


@pytest.mark.parametrize("line", [b"a:b\r\n" * 128, b"X: " + b"a" * 40_000 + b"\r\n"])
def test_a_large_head_in_one_segment_is_refused(service: RunningService, line: bytes) -> None:
    with connect(service) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + line + b"\r\n")
        status, problem = read_answer(connection)
        assert (status, problem["type"]) == (431, "urn:quatserve:problem:headers-too-large")
        connection.sendall(b"it was still sending")  # the connection lingers
        assert connection.recv(1) == b""
    assert "Traceback" not in service.log()


def test_a_declared_length_may_have_leading_zeros(service: RunningService) -> None:
    for value, status in (("0" * 5000 + str(len(RED)), 200), ("0" * 5000 + "9" * 12, 413)):
        with connect(service) as connection:
            connection.sendall(head(value) + RED)
            assert read_answer(connection)[0] == status


def good_answers(connection: socket.socket, count: int) -> int:
    """The number of responses with status 200 among the next `count`."""
    stream = connection.makefile("rb")
    good = 0
    for _ in range(count):
        good += b" 200 " in stream.readline()
        length = 0
        while (line := stream.readline().strip()) != b"":
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        stream.read(length)
    return good


def test_a_wrong_or_malformed_length_is_answered(start: Start) -> None:
    running = start(upload_timeout_s=0.5)
    with connect(running) as short:
        short.sendall(head(len(RED) + 10) + RED)
        assert read_answer(short)[0] == 408
    for malformed in (head("many"), CHUNKED_HEAD + b"many\r\n"):
        with connect(running) as bad:
            bad.sendall(malformed)
            status, problem = read_answer(bad)
        assert (status, problem["type"]) == (400, "urn:quatserve:problem:malformed-request")
        assert problem["request_id"]
    assert running.client.get("/healthz").status_code == 200

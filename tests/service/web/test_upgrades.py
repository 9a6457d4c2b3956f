"""Clients that offer HTTP/2 (the JDK's, `curl --http2`) are served over HTTP/1.1, with their body."""

import json
import re
import socket
import time
from typing import Any

import pytest

from tests.service.conftest import Start
from tests.service.harness import RunningService, plain
from tests.service.web.test_limits import HEALTH, closed, connect, head

RED = plain((200, 60, 40))
LENGTH = f"Content-Length: {len(RED)}".encode()
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nuPGRADE: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
OFFERED = head(len(RED)).replace(b"Host", OFFER + b"Host")
CLOSING = OFFERED.replace(b"Connection: ", b"Connection: close, ")
CHUNKED = OFFERED.replace(LENGTH, b"Transfer-Encoding: chunked")
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(RED), RED)


def answers(connection: socket.socket, count: int) -> list[tuple[int, Any]]:
    """Status and JSON body of each of the next responses."""
    found = []
    with connection.makefile("rb") as stream:
        for _ in range(count):
            status = int(stream.readline().split()[1])
            lines = iter(lambda: stream.readline().strip().lower(), b"")
            length = next(int(line.split(b":")[1]) for line in list(lines) if b"content-length" in line)
            found.append((status, json.loads(stream.read(length))))
    return found


def send(connection: socket.socket, *segments: bytes) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for segment in segments:
        connection.sendall(segment)
        time.sleep(0.05)  # for each to be read before the next


@pytest.mark.parametrize(
    "segments",
    [
        (OFFERED + RED,),
        (OFFERED, RED),
        (OFFERED[:60], OFFERED[60:-2], OFFERED[-2:] + RED[:9], RED[9:]),
        (CHUNKED + CHUNKS,),
        (CHUNKED, CHUNKS[:7], CHUNKS[7:]),
    ],
    ids=["one segment", "two", "a head in pieces", "chunked", "chunked in pieces"],
)
def test_the_body_is_read_and_the_connection_kept(
    service: RunningService, segments: tuple[bytes, ...]
) -> None:
    with connect(service) as connection:
        send(connection, *segments)
        [(status, answer)] = answers(connection, 1)
        assert (status, answer["results"][0]["predictions"][0]["label"]) == (200, "red")
        send(connection, HEALTH)
        assert answers(connection, 1) == [(200, {"status": "alive"})]


def everything(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_body_is_never_parsed_as_the_next_request(service: RunningService) -> None:
    smuggled = b"GET /models HTTP/1.1\r\nHost: x\r\n\r\n"
    with connect(service) as connection:
        send(connection, OFFERED.replace(LENGTH, b"Content-Length: %d" % len(smuggled)), smuggled)
        send(connection, HEALTH.replace(b"Host", b"Connection: close\r\nHost"))
        told = everything(connection)
    assert re.findall(rb"HTTP/1.1 (\d+)", told) == [b"400", b"200"]
    assert told.endswith(b'{"status":"alive"}')


def test_offers_may_be_pipelined(service: RunningService) -> None:
    plainly = head(len(RED)) + RED
    with connect(service) as connection:
        send(connection, plainly + (OFFERED + RED) * 3 + plainly + OFFERED, RED + HEALTH)
        assert [status for status, _ in answers(connection, 7)] == [200] * 7


def test_an_offer_may_come_with_connection_close(service: RunningService) -> None:
    with connect(service) as connection:
        send(connection, CLOSING, RED)
        assert answers(connection, 1)[0][0] == 200
        assert closed(connection)


def test_connect_is_refused_and_nothing_after_it_is_read(service: RunningService) -> None:
    with connect(service) as connection:
        send(connection, b"CONNECT /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + HEALTH)
        answer = everything(connection)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1


def test_an_offer_logs_no_warning(start: Start) -> None:
    running = start()
    with connect(running) as connection:
        send(connection, OFFERED + RED)
        assert answers(connection, 1)[0][0] == 200
    assert "warning" not in running.log()

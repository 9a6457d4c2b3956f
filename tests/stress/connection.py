"""A keep-alive HTTP/1.1 connection as raw as a test needs it, and many of them at once."""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Self, TypeVar

LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
ANSWER_LIMIT_S = 30.0
BOUNDARY = "stress-boundary"
NO_ANSWER = 0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    head: bytes
    body: bytes
    seconds: float  # from the first byte sent to the last received


def post(path: str, body: bytes, content_type: str = "image/png", **headers: object) -> bytes:
    """The bytes of a request. Headers by keyword, underscores for dashes; the length may be forged."""
    fields = {"host": "x", "content-type": content_type, "content-length": len(body)}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def post_form(path: str, image: bytes, filename: str, part_type: str) -> bytes:
    disposition = f'Content-Disposition: form-data; name="file"; filename="{filename}"'
    head = f"--{BOUNDARY}\r\n{disposition}\r\nContent-Type: {part_type}\r\n\r\n"
    body = head.encode() + image + f"\r\n--{BOUNDARY}--\r\n".encode()
    return post(path, body, f"multipart/form-data; boundary={BOUNDARY}")


class Connection:
    """One request after the other."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()  # at once, whatever is still on its way

    async def ask(self, request: bytes) -> Answer:
        begun = time.perf_counter()
        self.writer.write(request)
        async with asyncio.timeout(ANSWER_LIMIT_S):
            return await self.answer(begun)

    async def answer(self, begun: float) -> Answer:
        """The next answer, to a request that began then."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = LENGTH.search(head)
        body = await self.reader.readexactly(int(length[1]) if length else 0)
        return Answer(int(head[9:12]), head, body, time.perf_counter() - begun)


LOST = (ConnectionError, asyncio.IncompleteReadError, TimeoutError)


async def pour(
    port: int, requests: Iterable[tuple[T, bytes]], connections: int, told: Callable[[T, Answer], None]
) -> None:
    """Send every request over a few connections; where one is lost, the answer's status is 0."""
    waiting = iter(requests)

    async def client() -> None:
        through = False
        while not through:  # each lost connection uses up a request, so this ends
            async with Connection(port) as connection:
                through = await _ask_all(connection, waiting, told)

    await asyncio.gather(*(client() for _ in range(connections)))


async def _ask_all(
    connection: Connection, waiting: Iterator[tuple[T, bytes]], told: Callable[[T, Answer], None]
) -> bool:
    """Ask until nothing is waiting; False where the connection is lost first."""
    for tag, request in waiting:
        begun = time.perf_counter()
        try:
            answer = await connection.ask(request)
        except LOST:
            told(tag, Answer(NO_ANSWER, b"", b"", time.perf_counter() - begun))
            return False
        told(tag, answer)
    return True

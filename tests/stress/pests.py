"""Clients that keep a connection busy with nothing, each told off in its own way."""

import asyncio
import time
from dataclasses import dataclass

from tests.service.harness import plain
from tests.service.web.test_limits import CHUNK, CHUNKED_HEAD
from tests.stress.connection import Connection, post

RED = plain((200, 60, 40))
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n"
PATIENCE_S = 30.0  # of a client that is not let go
UNSENT_BYTES = 1 << 20  # of an endless body, at most at once


@dataclass(frozen=True)
class Pest:
    """Sends an opening, then more of something again and again; `told` is the status it must be given."""

    name: str
    opening: bytes
    told: int  # 0: closed without a word
    more: bytes = b""
    pause_s: float = 1.0

    async def visit(self, port: int) -> tuple[int, float]:
        """The status given, and how many seconds until the service let go."""
        begun, received = time.monotonic(), bytearray()
        async with Connection(port) as connection:
            reading = asyncio.create_task(_read_on(connection.reader, received))
            connection.writer.write(self.opening)
            while not reading.done() and time.monotonic() - begun < PATIENCE_S:
                await asyncio.wait([reading], timeout=self.pause_s)
                if connection.writer.transport.get_write_buffer_size() < UNSENT_BYTES:
                    connection.writer.write(self.more)
            reading.cancel()
        return int(received[9:12] or 0), time.monotonic() - begun


async def _read_on(reader: asyncio.StreamReader, received: bytearray) -> None:
    try:
        while chunk := await reader.read(4096):
            received += chunk
    except ConnectionError:
        return


PESTS = (
    Pest("body, a byte a second", post("/classify", b"", content_length=100_000), 408, b"x"),
    Pest("head, a byte a second", HEALTH + b"x-slow: ", 0, b"x"),
    Pest("body without end", CHUNKED_HEAD, 413, 64 * CHUNK, 0.01),
    Pest("head without end", HEALTH + b"x-long: ", 431, b"x" * 4096, 0.01),
    Pest("trailer without end", CHUNKED_HEAD + b"1\r\nx\r\n0\r\nx-long: ", 0, b"x" * 4096, 0.01),
    Pest("line breaks after an answer", HEALTH + b"\r\n", 200, b"\r\n"),
    Pest("body shorter than its length", post("/classify", RED, content_length=len(RED) + 9), 408),
    Pest("body longer than its length", post("/classify", RED, content_length=len(RED) - 9), 400),
    Pest("length that is no number", post("/classify", RED, content_length="many"), 400),
    Pest("length of less than nothing", post("/classify", RED, content_length=-1), 400),
    Pest("length given twice", post("/classify", RED, Content_Length=3), 400),
    Pest("length beside chunks", post("/classify", RED, transfer_encoding="chunked"), 400),
)
SILENT = Pest("silent", b"", 0)

"""Many more clients than there is room for: each asks without end, and pauses briefly when refused."""

import asyncio
import re
import time
from dataclasses import dataclass, field

import uvloop

RETRY_PAUSE_S = 0.25  # a quarter of what Retry-After asks: impatient clients
LENGTH = re.compile(rb"content-length: (\d+)")


@dataclass
class Tally:
    accepted_ms: list[float] = field(default_factory=list)
    refused_ms: list[float] = field(default_factory=list)
    others: int = 0


async def _client(port: int, request: bytes, until: float, tally: Tally) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < until:
        begun = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = LENGTH.search(head)
        await reader.readexactly(int(length[1]) if length else 0)
        elapsed_ms = (time.perf_counter() - begun) * 1000
        status = head[9:12]
        if status == b"200":
            tally.accepted_ms.append(elapsed_ms)
        elif status == b"503":
            tally.refused_ms.append(elapsed_ms)
            await asyncio.sleep(RETRY_PAUSE_S)
        else:
            tally.others += 1
    writer.close()


async def _overload(port: int, image: bytes, connections: int, seconds: float) -> Tally:
    lines = ["POST /classify HTTP/1.1", "Host: x", "Content-Type: image/png", f"Content-Length: {len(image)}"]
    request = "\r\n".join([*lines, "", ""]).encode() + image
    tally, until = Tally(), time.perf_counter() + seconds
    await asyncio.gather(*(_client(port, request, until, tally) for _ in range(connections)))
    return tally


def overload(port: int, image: bytes, connections: int, seconds: float) -> Tally:
    return uvloop.run(_overload(port, image, connections, seconds))  # asyncio's own loop would be the brake

"""A web server on loopback that serves one file, whole or from a byte on, and can break off."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    content: bytes
    ranges: bool = True  # whether it knows Range
    break_after: int | None = None  # bytes of the next answer only
    status: int = 200
    port: int = 0
    asked: list[str | None] = field(default_factory=list)  # the Range header of each request

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/files/archive.tar.gz"


@contextlib.contextmanager
def serving(server: FileServer) -> Iterator[FileServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _answer(self, server)

        def log_message(self, *_: object) -> None:
            """Quiet: the tests look at `asked`."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server.port = http.server_address[1]
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield server
        http.shutdown()
        thread.join()


def _answer(handler: BaseHTTPRequestHandler, server: FileServer) -> None:
    asked = handler.headers["Range"]
    server.asked.append(asked)
    start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and server.ranges else 0
    if start >= len(server.content) or server.status != 200:
        handler.send_error(server.status if server.status != 200 else 416)
        return
    body = server.content[start:]
    handler.send_response(206 if start else 200)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body[: server.break_after])
    server.break_after = None

"""uvicorn's server and HTTP protocol, bounded. The one file that uses undocumented parts of uvicorn.

What uvicorn alone does not bound: how long a silent connection stays open, the size of a request's head, the
number of pipelined requests, the rest of a body after an early response, and the time and memory of responses
that a client does not read. It also takes the body of a request that offers another protocol (`Upgrade: h2c`)
for the next request, and reports a disconnect to the last of several pipelined requests only.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import ClassVar

import httptools
import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from quatserve.service.settings import Settings
from quatserve.service.web.lifecycle import DEPARTURE, Departure
from quatserve.service.web.problems import (
    HEADERS_TOO_LARGE,
    MALFORMED_REQUEST,
    TOO_MANY_CONNECTIONS,
    ProblemType,
)
from quatserve.service.web.refusals import Refusals
from quatserve.service.web.unread import UnreadResponses

MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 128
MAX_PIPELINED = 16  # requests that wait for the response before theirs
LINGER_S = 3.0  # a refused client may go on sending so long: closed at once, it could not read the reason
RESPONSES_START_S, POLL_S = 1.0, 0.05


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Its timer runs while it waits for a head, or for the rest of a refused body."""

    max_connections: ClassVar[int]
    header_timeout_s: ClassVar[float]
    refusals: ClassVar[Refusals]
    unread: ClassVar[UnreadResponses]
    lingering: ClassVar[set["BoundedProtocol"]]
    _timer: asyncio.TimerHandle | None = None
    _pending_bytes = 0  # received since the parser last returned a part of a head, trailer or body
    _head_bytes = 0  # returned by the parser, of the current head
    _head_is_too_large = False
    _completion_deferred = False  # until the client has read the last response
    _active: RequestResponseCycle | None = None  # uvicorn's `cycle` is the last one received

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.departure = Departure()
        self._start_timer(self.header_timeout_s)
        if len(self.connections) > self.max_connections:
            self._refuse(TOO_MANY_CONNECTIONS, f"at most {self.max_connections} connections are open at once")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._unset_keepalive_if_required()  # uvicorn leaves its timer running after a connection reset
        self.lingering.discard(self)
        self.unread.remove(self.transport)
        super().connection_lost(exc)
        if self._active and not self._active.response_complete:
            self._active.disconnected = True  # uvicorn tells only the last request received
            self._active.message_event.set()
        self.departure.happened()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._active = cycle
        super()._start_asgi_task(cycle, app)

    # --- receiving ---

    def data_received(self, data: bytes) -> None:
        if self in self.lingering or self.transport.is_closing():
            return
        self._pending_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            if self._head_is_too_large:
                self._refuse_head()
            else:
                self._refuse_malformed(str(error))
        if self in self.lingering or self.transport.is_closing():
            return
        if self._pending_bytes > MAX_HEAD_BYTES:  # the parser itself has no limit
            self._refuse_head()
        elif self._timer is None and self.cycle.response_complete:
            self._start_timer(self.header_timeout_s)  # only line breaks came: uvicorn has stopped its timer

    def _parse(self, data: bytes) -> None:
        """Feed the parser. It stops behind a head that offers another protocol, as if we had accepted; such a
        head is parsed again without the offer, and then the body behind it."""
        rest = memoryview(data)
        while True:
            try:
                return self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as offer:
                rest = rest[offer.args[0] :]
                head = self._head_without_offer()
                self.parser = httptools.HttpRequestParser(
                    self
                )  # the old one may have seen `connection: close`
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
                self.parser.feed_data(head)

    def _head_without_offer(self) -> bytes:
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            raise httptools.HttpParserError("CONNECT is not supported")
        kept = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        return b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, version, b"".join(kept))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self.scope["extensions"] = {DEPARTURE: self.departure}  # type: ignore[dict-item]
        self._start_timer(self.header_timeout_s)

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        super().on_header(name, value)

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        self._head_is_too_large = self._head_bytes > MAX_HEAD_BYTES or len(self.headers) >= MAX_HEADERS
        if self._head_is_too_large:
            raise httptools.HttpParserError("the head is too large")  # stops the parser

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():  # the head is parsed again, without the offer
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            raise httptools.HttpParserError(f"more than {MAX_PIPELINED} requests are pipelined")
        self._stop_timer()
        self._pending_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._pending_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._pending_bytes = 0
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()  # uvicorn pauses at 64 kB, and would not see the client disconnect
        if self.cycle.response_complete and not self.pipeline:
            self._start_timer(self.timeout_keep_alive)  # the rest of a refused body has arrived

    # --- responding ---

    def on_response_complete(self) -> None:
        if self.transport.is_closing():
            self.unread.add(self.transport)
        elif self.flow.write_paused:  # the next response would wait for the client too, and not be counted
            self.flow.pause_reading()
            self._stop_timer()  # half a head may be here, whose rest is not read now
            self._completion_deferred = True
            return
        super().on_response_complete()
        if self.cycle.more_body and self.cycle.response_complete:
            self._start_timer(LINGER_S)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unread.add(self.transport)
        self.unread.free_memory()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.transport.is_closing():
            return
        self.unread.remove(self.transport)
        if self._completion_deferred:
            self._completion_deferred = False
            self.on_response_complete()
            if self._pending_bytes:
                self._start_timer(self.header_timeout_s)

    # --- refusing and closing ---

    def _refuse_malformed(self, detail: str) -> None:
        responding = getattr(self.cycle, "response_started", False)  # there is no cycle before the first head
        if self.pipeline or (responding and not self.cycle.response_complete):
            self.transport.abort()  # writing now would corrupt the response being sent
        else:
            self._write_refusal(MALFORMED_REQUEST, detail)
            self._close()

    def _refuse_head(self) -> None:
        if getattr(self.cycle, "response_complete", True):
            self._refuse(
                HEADERS_TOO_LARGE, f"the head may have {MAX_HEAD_BYTES:,} bytes in {MAX_HEADERS} headers"
            )
        else:  # a trailer, or the next head: writing now would corrupt the response being sent
            self.transport.abort()

    def _refuse(self, kind: ProblemType, detail: str) -> None:
        """Write the reason and close; the connection lingers if no more than `max_connections` others do."""
        self.connections.discard(self)
        self._write_refusal(kind, detail)
        if len(self.lingering) >= self.max_connections:
            self._close()
            return
        self.lingering.add(self)
        self.transport.write_eof()
        self._start_timer(LINGER_S)

    def _write_refusal(self, kind: ProblemType, detail: str) -> None:
        self.transport.write(self.refusals.refuse(kind, detail, self.client[0] if self.client else None))

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def _close(self) -> None:
        """Close once the client has read what was written, or its time for that is over."""
        self.transport.close()
        self.unread.add(self.transport)

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def bounded_protocol(settings: Settings, refusals: Refusals) -> type[BoundedProtocol]:
    """The protocol with these limits, as a class: uvicorn creates the instances and passes nothing."""
    shared = {
        "max_connections": settings.max_connections,
        "header_timeout_s": settings.header_timeout_s,
        "refusals": refusals,
        "unread": UnreadResponses(settings.answer_timeout_s, settings.answer_memory_bytes),
        "lingering": set(),
    }
    return type("BoundedProtocol", (BoundedProtocol,), shared)


class BoundedServer(uvicorn.Server):
    """uvicorn's server with signal handlers on the event loop, and what a drain must know of connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.handlers: dict[signal.Signals, Callable[[], None]] = {}

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install our handlers. uvicorn's own would end the process by the signal instead of exit code 0."""
        loop = asyncio.get_running_loop()
        for number, handler in self.handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in self.handlers:
                loop.remove_signal_handler(number)

    def abort_unread(self) -> None:
        """Drop the connections whose client does not read: whoever writes to them would wait for it."""
        for connection in self._unread():
            connection.transport.abort()

    async def responses_read(self) -> None:
        """Wait until clients have read the responses being sent, but not for requests that arrive now."""
        if self.server_state.tasks:  # some begin to write only now
            await asyncio.wait(set(self.server_state.tasks), timeout=RESPONSES_START_S)
        waiting = self._unread()
        while waiting & self._unread():  # noqa: ASYNC110  # a transport does not report that it is empty
            await asyncio.sleep(POLL_S)

    def _unread(self) -> set[BoundedProtocol]:
        found = {item for item in self.server_state.connections if isinstance(item, BoundedProtocol)}
        return {connection for connection in found if connection.transport.get_write_buffer_size()}

"""uvicorn's HTTP protocol, bounded: in connections, in the time and size of a request's head, in lingering.

uvicorn alone lets a silent connection stay for ever, takes a head of any size and any number of requests
ahead, after an early answer reads the rest of a body without end, and keeps an answer that its client does
not read for as long as it likes, and the next one behind it. Where a client offers to go on in another
protocol, it takes the body for the next request. Of requests sent ahead, it tells only the last that the
client has left.
"""

import asyncio
from dataclasses import dataclass, fields
from http import HTTPStatus
from typing import ClassVar

import httptools
import orjson
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from quatserve.service.settings import Settings
from quatserve.service.web.lifecycle import DEPARTURE, Departure
from quatserve.service.web.problems import (
    HEADERS_TOO_LARGE,
    MALFORMED_REQUEST,
    MEDIA_TYPE,
    TOO_MANY_CONNECTIONS,
    Kind,
    document,
)
from quatserve.service.web.refusals import Refusals

MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 128
MAX_PIPELINED = 16  # requests that wait for the answer before them
LINGER_S = 3.0  # for a refused client to finish sending: closed at once, it would not read why


@dataclass(frozen=True, kw_only=True)
class Bounds:
    max_connections: int
    header_timeout_s: float
    answer_timeout_s: float
    answer_memory_bytes: int


def _refusal(kind: Kind, detail: str, request_id: str) -> bytes:
    body = orjson.dumps(document(kind, detail, request_id))
    retry = "retry-after: 1\r\n" if kind.status == 503 else ""
    head = (
        f"HTTP/1.1 {kind.status} {HTTPStatus(kind.status).phrase}\r\ncontent-type: {MEDIA_TYPE}\r\n"
        f"content-length: {len(body)}\r\nx-request-id: {request_id}\r\n{retry}connection: close\r\n\r\n"
    )
    return head.encode() + body


class BoundedProtocol(HttpToolsProtocol):
    """One connection with two timers: one runs while a head is awaited, and after an answer given too early;
    the other while the client does not take what was written."""

    bounds: ClassVar[Bounds]
    refusals: ClassVar[Refusals]
    lingering: ClassVar[set["BoundedProtocol"]]
    unread: ClassVar[dict["BoundedProtocol", asyncio.TimerHandle]]  # the longest unread first
    _timer: asyncio.TimerHandle | None = None
    _gathered_bytes = 0  # of a head or a trailer: since the parser last handed something over
    _head_bytes = 0  # of the head that the parser has handed over so far
    _head_is_too_large = False
    _next_waits = False  # for the client to take the last answer
    _answered: RequestResponseCycle | None = None  # `cycle` is the last that came; others may be before it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.departure = Departure()
        self._limit(self.bounds.header_timeout_s)
        if len(self.connections) > self.bounds.max_connections:
            self._refuse(
                TOO_MANY_CONNECTIONS, f"at most {self.bounds.max_connections} connections are open at once"
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self._unlimit()
        self._unset_keepalive_if_required()  # uvicorn leaves it where the client ended with a reset
        self.lingering.discard(self)
        self.taken()
        super().connection_lost(exc)
        if self._answered and not self._answered.response_complete:
            self._answered.disconnected = True  # uvicorn tells the last that came
            self._answered.message_event.set()
        self.departure.happened()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self in self.lingering or self.transport.is_closing():
            return
        self._gathered_bytes += len(data)
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
        if self._gathered_bytes > MAX_HEAD_BYTES:  # the parser itself knows no bound
            self._refuse_head()
        elif self._timer is None and self.cycle.response_complete:
            self._limit(self.bounds.header_timeout_s)  # line breaks before a head: uvicorn let its timer go

    def _parse(self, data: bytes) -> None:
        """Feed the parser. A request that offers another protocol (`Upgrade: h2c`) ends for it with the head,
        as if we took the offer: such a head is parsed again without it, and then the body behind it."""
        rest = memoryview(data)
        while True:
            try:
                return self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as offer:
                rest = rest[offer.args[0] :]
                head = self._head_without_offer()
                self.parser = httptools.HttpRequestParser(self)  # the old one may be past `connection: close`
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
                self.parser.feed_data(head)

    def _head_without_offer(self) -> bytes:
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            raise httptools.HttpParserError("CONNECT is not served")
        kept = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        return b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, version, b"".join(kept))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self.scope["extensions"] = {DEPARTURE: self.departure}  # type: ignore[dict-item]
        self._limit(self.bounds.header_timeout_s)

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
        if self.parser.should_upgrade():  # comes again without the offer
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            raise httptools.HttpParserError(f"more than {MAX_PIPELINED} requests ahead")
        self._unlimit()
        self._gathered_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._gathered_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._gathered_bytes = 0
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()  # uvicorn stops at 64 kB and would not see the client leave
        if self.cycle.response_complete and not self.pipeline:
            self._limit(self.timeout_keep_alive)  # the rest of a refused body is through

    def on_response_complete(self) -> None:
        if self.transport.is_closing():
            self._await_reading()
        elif self.flow.write_paused:  # the next answer would wait for the client too, and be counted nowhere
            self.flow.pause_reading()
            self._unlimit()  # a head that is half here cannot come on
            self._next_waits = True
            return
        super().on_response_complete()
        if self.cycle.more_body and self.cycle.response_complete:
            self._limit(LINGER_S)

    def pause_writing(self) -> None:
        """The client is slower than its answer: bounded in time, and together with the others in bytes."""
        super().pause_writing()
        self._await_reading()
        while sum(p.transport.get_write_buffer_size() for p in self.unread) > self.bounds.answer_memory_bytes:
            oldest = next(iter(self.unread))
            oldest.taken()
            oldest.transport.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.transport.is_closing():
            return
        self.taken()
        if self._next_waits:
            self._next_waits = False
            self.on_response_complete()
            if self._gathered_bytes:
                self._limit(self.bounds.header_timeout_s)

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def _close(self) -> None:
        """After what was written is taken, for which there is a limit too."""
        self.transport.close()
        self._await_reading()

    def _await_reading(self) -> None:
        if self not in self.unread:
            self.unread[self] = self.loop.call_later(self.bounds.answer_timeout_s, self.transport.abort)

    def taken(self) -> None:
        """Nothing waits for the client any more."""
        if timer := self.unread.pop(self, None):
            timer.cancel()

    def _refuse_malformed(self, detail: str) -> None:
        begun = getattr(self.cycle, "response_started", False)  # before the first request there is no cycle
        if self.pipeline or (begun and not self.cycle.response_complete):
            self.transport.abort()  # our word would fall into the answer under way
        else:
            self._say(MALFORMED_REQUEST, detail)
            self._close()

    def _refuse_head(self) -> None:
        if getattr(self.cycle, "response_complete", True):  # before the first request there is no cycle
            self._refuse(HEADERS_TOO_LARGE, f"at most {MAX_HEAD_BYTES:,} bytes are taken")
        else:  # a trailer, or the next head: our word would fall into the answer under way
            self.transport.abort()

    def _refuse(self, kind: Kind, detail: str) -> None:
        """Say why, then read on for a moment without listening; as many may linger as may be connected."""
        self.connections.discard(self)
        self._say(kind, detail)
        if len(self.lingering) >= self.bounds.max_connections:
            self._close()
            return
        self.lingering.add(self)
        self.transport.write_eof()
        self._limit(LINGER_S)

    def _say(self, kind: Kind, detail: str) -> None:
        request_id = self.refusals.note(kind, detail, self.client[0] if self.client else None)
        self.transport.write(_refusal(kind, detail, request_id))

    def _limit(self, seconds: float) -> None:
        self._unlimit()
        self._timer = self.loop.call_later(seconds, self._close)

    def _unlimit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def bounded_protocol(settings: Settings, refusals: Refusals) -> type[BoundedProtocol]:
    """The protocol with the bounds of these settings: uvicorn creates it and passes none."""
    bounds = Bounds(**{field.name: getattr(settings, field.name) for field in fields(Bounds)})
    shared = {"bounds": bounds, "refusals": refusals, "lingering": set(), "unread": {}}
    return type("BoundedProtocol", (BoundedProtocol,), shared)

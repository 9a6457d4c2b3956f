"""What every request passes: request id, API key, error document, metrics, log line.

The inference routes are called from here directly. FastAPI knows and documents them all the same, but
its routing, dependency and validation layers would cost a third of the time a small image takes.
"""

import asyncio
import hashlib
import hmac
import itertools
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from prometheus_client import Counter, Histogram
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quatserve.service.errors import ClientGoneError, DrainingError, UnauthorizedError
from quatserve.service.telemetry.metrics import Metrics
from quatserve.service.web.lifecycle import Lifecycle
from quatserve.service.web.problems import CLIENT_GONE_STATUS, REJECTIONS, kind_of, response_of

Handler = Callable[[Request], Awaitable[Response]]
OPEN_PATHS = frozenset({"/", "/healthz", "/readyz", "/docs", "/openapi.json"})
OPEN_PREFIXES = ("/static/", "/v2/health/")
ANSWERED_ERROR = "answered_error"  # in a request's state: an error of ours that FastAPI has answered already
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
OTHER_ROUTE = "other"
PROCESS_ID = os.urandom(4).hex()
_count = itertools.count(1)
access = logging.getLogger("quatserve.access")
log = logging.getLogger(__name__)


class KeyRing:
    """API keys, compared in constant time by digests of equal length."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def check(self, scope: Scope) -> None:
        """Raise unless the request carries a known key, or none is needed."""
        path = scope["path"]
        if not self._digests or path in OPEN_PATHS or path.startswith(OPEN_PREFIXES):
            return
        headers = dict(scope["headers"])
        authorization = headers.get(b"authorization", b"")
        given = (
            authorization[7:] if authorization[:7].lower() == b"bearer " else headers.get(b"x-api-key", b"")
        )
        digest = hashlib.sha256(given.strip()).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]  # all, whichever matches
        if not any(matches):
            raise UnauthorizedError("send a key as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'")


def request_id_of(scope: Scope) -> str:
    """The client's own id where it is harmless, otherwise a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return new_request_id()


def new_request_id() -> str:
    return f"{PROCESS_ID}{next(_count):08x}"


def route_of(scope: Scope, hot: Mapping[str, Handler]) -> str:
    """A label from a bounded set: whatever paths clients invent, the metrics stay small."""
    if scope["path"] in hot:
        return str(scope["path"])
    return str(getattr(scope.get("route"), "path", OTHER_ROUTE))


class _Answer:
    """The way out of one request: remembers the status, adds the headers of every answer."""

    __slots__ = ("_send", "request_id", "status")

    def __init__(self, send: Send, request_id: str) -> None:
        self._send, self.request_id = send, request_id
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [
                *message["headers"],
                (b"x-request-id", self.request_id.encode()),
                (b"x-content-type-options", b"nosniff"),
            ]
        await self._send(message)


class Gateway:
    """The outermost ASGI application. `api` is FastAPI's, for every route that is not hot."""

    def __init__(
        self,
        api: ASGIApp,
        *,
        hot: Mapping[str, Handler],
        keys: KeyRing,
        lifecycle: Lifecycle,
        metrics: Metrics,
        access_log: bool,
    ) -> None:
        self._api, self._hot, self._keys = api, hot, keys
        self._counters: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._lifecycle, self._metrics, self._access_log = lifecycle, metrics, access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        begun = time.perf_counter()
        answer = _Answer(send, request_id_of(scope))
        scope.setdefault("state", {})["request_id"] = answer.request_id
        try:
            await self._handle(scope, receive, answer)
        except ClientGoneError:
            answer.status = CLIENT_GONE_STATUS
        except asyncio.CancelledError:  # the drain ran out of time; nothing but the server cancels a request
            await self._explain(DrainingError("the service had to stop first"), scope, receive, answer)
        except Exception as error:  # noqa: BLE001  # every fault gets its document
            await self._explain(error, scope, receive, answer)
        self._record(scope, answer, time.perf_counter() - begun)

    async def _handle(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        self._keys.check(scope)
        handler = self._hot.get(scope["path"]) if scope["method"] == "POST" else None
        if handler is None:
            await self._api(scope, receive, answer.send)
            if error := scope["state"].pop(ANSWERED_ERROR, None):
                self._note(error, answer)
            return
        with self._lifecycle.accept():
            response = await handler(Request(scope, receive))
            await response(scope, receive, answer.send)

    def _note(self, error: Exception, answer: _Answer) -> None:
        """What only we are told of a fault, and how many were refused for what."""
        kind = kind_of(error)
        if kind.status == 500:
            log.error("request failed", exc_info=error, extra={"request_id": answer.request_id})
        if kind.status in REJECTIONS:
            self._metrics.rejections.labels(kind.slug).inc()

    async def _explain(self, error: Exception, scope: Scope, receive: Receive, answer: _Answer) -> None:
        self._note(error, answer)
        if answer.status:  # answered already; had it been half an answer, the server would cut it off
            return
        await response_of(error, answer.request_id, scope["path"])(scope, receive, answer.send)

    def _counters_of(self, route: str, status: int) -> tuple[Counter, Histogram]:
        """Looked up once for each pair: finding a labelled child costs more than counting."""
        found = self._counters.get((route, status))
        if found is None:
            found = self._metrics.requests.labels(route, str(status)), self._metrics.seconds.labels(route)
            self._counters[route, status] = found
        return found

    def _record(self, scope: Scope, answer: _Answer, seconds: float) -> None:
        count, duration = self._counters_of(route_of(scope, self._hot), answer.status)
        count.inc()
        duration.observe(seconds)
        if self._access_log:
            access.info(
                "request",
                extra={
                    "request_id": answer.request_id,
                    "method": scope["method"],
                    "path": scope["path"],
                    "status": answer.status,
                    "ms": round(seconds * 1000, 2),
                    "client": scope["client"][0] if scope.get("client") else None,
                },
            )

"""What every request passes: request id, API key, problem document, metrics and one log line."""

import asyncio
import hashlib
import hmac
import itertools
import logging
import os
import re
import time
from collections.abc import Sequence

from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quatserve.service.errors import ClientGoneError, DrainingError, UnauthorizedError
from quatserve.service.telemetry.metrics import Metrics
from quatserve.service.web.problems import CLIENT_GONE_STATUS, REJECTIONS, problem_type_of, response_of

OPEN_PATHS = frozenset({"/", "/healthz", "/readyz", "/docs", "/openapi.json"})
OPEN_PREFIXES = ("/static/", "/v2/health/")
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
OTHER_ROUTE = "other"
PROCESS_ID = os.urandom(4).hex()
_count = itertools.count(1)
access = logging.getLogger("quatserve.access")
log = logging.getLogger(__name__)


class KeyRing:
    """The API keys. Compares digests of equal length in constant time."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def check(self, scope: Scope) -> None:
        """Raise unless the request carries a known key, or needs none."""
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
    """The client's own id if it is safe to log, otherwise a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return new_request_id()


def new_request_id() -> str:
    return f"{PROCESS_ID}{next(_count):08x}"


def route_of(scope: Scope) -> str:
    """The path of the matched route: clients may invent paths, but the set of metric labels stays bounded."""
    return str(getattr(scope.get("route"), "path", OTHER_ROUTE))


class _Answer:
    """Sends the messages of one response: adds the common headers and records the status."""

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


class RequestMiddleware:
    """The outermost ASGI application, around FastAPI's."""

    def __init__(self, api: ASGIApp, *, keys: KeyRing, metrics: Metrics, access_log: bool) -> None:
        self._api, self._keys, self._metrics, self._access_log = api, keys, metrics, access_log
        self._counters: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        begun = time.perf_counter()
        answer = _Answer(send, request_id_of(scope))
        scope.setdefault("state", {})["request_id"] = answer.request_id
        try:
            self._keys.check(scope)
            await self._api(scope, receive, answer.send)
        except ClientGoneError:
            answer.status = CLIENT_GONE_STATUS
        except asyncio.CancelledError:  # the drain ran out of time; nothing else cancels a request
            await self._explain(DrainingError("the service had to stop first"), scope, receive, answer)
        except Exception as error:  # noqa: BLE001  # every error gets its problem document
            await self._explain(error, scope, receive, answer)
        self._record(scope, answer, time.perf_counter() - begun)

    async def _explain(self, error: Exception, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Log and count an error, and answer with its document unless FastAPI has."""
        kind = problem_type_of(error)
        if kind.status == 500 or isinstance(error, MemoryError):
            log.error("request failed", exc_info=error, extra={"request_id": answer.request_id})
        if kind.status in REJECTIONS:
            self._metrics.rejections.labels(kind.slug).inc()
        if not answer.status:  # after half a response, the server cuts the connection
            await response_of(error, answer.request_id, scope["path"])(scope, receive, answer.send)

    def _counters_of(self, route: str, status: int) -> tuple[Counter, Histogram]:
        """Cached per pair: looking up a labelled metric costs more than incrementing it."""
        found = self._counters.get((route, status))
        if found is None:
            found = self._metrics.requests.labels(route, str(status)), self._metrics.seconds.labels(route)
            self._counters[route, status] = found
        return found

    def _record(self, scope: Scope, answer: _Answer, seconds: float) -> None:
        count, duration = self._counters_of(route_of(scope), answer.status)
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

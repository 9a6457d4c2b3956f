"""Refuses what never reaches the application: counts each refusal, and logs one per second and kind."""

import logging
import math
import time
from collections import Counter
from http import HTTPStatus

import orjson

from quatserve.service.telemetry.metrics import Metrics
from quatserve.service.web.middleware import OTHER_ROUTE, new_request_id
from quatserve.service.web.problems import MEDIA_TYPE, REJECTIONS, ProblemType, document

LOG_INTERVAL_S = 1.0  # between two lines of a kind: a flood of connections must not flood the log
log = logging.getLogger(__name__)


class Refusals:
    """Knows metrics, log and request ids for the protocol, which refuses connections and broken HTTP."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._unlogged: Counter[ProblemType] = Counter()
        self._logged_at: dict[ProblemType, float] = {}

    def refuse(self, kind: ProblemType, detail: str, client: str | None) -> bytes:
        """Count a refusal; return the HTTP response to write before the connection closes."""
        request_id = new_request_id()
        self._metrics.requests.labels(OTHER_ROUTE, str(kind.status)).inc()
        if kind.status in REJECTIONS:
            self._metrics.rejections.labels(kind.slug).inc()
        self._unlogged[kind] += 1
        now = time.monotonic()
        if now - self._logged_at.get(kind, -math.inf) >= LOG_INTERVAL_S:
            self._logged_at[kind] = now
            facts = {"reason": kind.slug, "detail": detail, "client": client, "request_id": request_id}
            log.warning("request refused unread", extra={**facts, "count": self._unlogged.pop(kind)})
        return _response(kind, detail, request_id)


def _response(kind: ProblemType, detail: str, request_id: str) -> bytes:
    body = orjson.dumps(document(kind, detail, request_id))
    retry = "retry-after: 1\r\n" if kind.status == 503 else ""
    head = (
        f"HTTP/1.1 {kind.status} {HTTPStatus(kind.status).phrase}\r\ncontent-type: {MEDIA_TYPE}\r\n"
        f"content-length: {len(body)}\r\nx-request-id: {request_id}\r\n{retry}connection: close\r\n\r\n"
    )
    return head.encode() + body

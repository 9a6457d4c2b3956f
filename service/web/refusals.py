"""What is refused before it reaches the application: every refusal counted, one a second and kind logged."""

import logging
import math
import time
from collections import Counter

from quatserve.service.telemetry.metrics import Metrics
from quatserve.service.web.middleware import OTHER_ROUTE, new_request_id
from quatserve.service.web.problems import REJECTIONS, Kind

QUIET_S = 1.0  # between two lines of a kind: whoever floods us shall not flood the log as well
log = logging.getLogger(__name__)


class Refusals:
    """Takes note for the protocol, which knows neither metrics nor request ids."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._untold: Counter[Kind] = Counter()
        self._told_at: dict[Kind, float] = {}

    def note(self, kind: Kind, detail: str, client: str | None) -> str:
        """Count a refusal, and return the request id to give it."""
        request_id = new_request_id()
        self._metrics.requests.labels(OTHER_ROUTE, str(kind.status)).inc()
        if kind.status in REJECTIONS:
            self._metrics.rejections.labels(kind.slug).inc()
        self._untold[kind] += 1
        now = time.monotonic()
        if now - self._told_at.get(kind, -math.inf) >= QUIET_S:
            self._told_at[kind] = now
            facts = {"reason": kind.slug, "detail": detail, "client": client, "request_id": request_id}
            log.warning("refused unread", extra={**facts, "count": self._untold.pop(kind)})
        return request_id

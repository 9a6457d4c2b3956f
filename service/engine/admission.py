"""Admits images while the queue has room and a run will start in time; refuses the others at once."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median_low

from quatserve.service.errors import BatcherClosedError, QueueFullError

RECENT_RUNS = 5  # their median predicts the next


@dataclass(frozen=True, kw_only=True)
class Limits:
    max_batch: int
    queue_images: int
    queue_timeout_s: float
    stuck_after_s: float
    buckets: tuple[int, ...] = ()  # sizes to pad to, ascending to max_batch; empty for no padding
    idle_check_s: float | None = None  # after so long without an image the model itself is checked


class Admission:
    """Counts images from before they are decoded until they are answered. Used on the event loop."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._recent_seconds_per_image: deque[float] = deque(maxlen=RECENT_RUNS)
        self._seconds_per_image = 0.0
        self.admitted = 0  # images admitted and not answered yet: being decoded, queued or running
        self.closed = False

    def expected_wait_s(self) -> float:
        """How long a new image would wait, predicted from recent runs."""
        return self.admitted * self._seconds_per_image

    def check_room(self, count: int) -> None:
        """Raise QueueFullError unless `count` images would be admitted now."""
        if self.closed:
            raise BatcherClosedError("the model is being replaced; try again")
        wait_s = self.expected_wait_s()
        room = self._limits.queue_images + self._limits.max_batch - self.admitted
        if count > room or wait_s > self._limits.queue_timeout_s:
            raise QueueFullError(wait_s)

    @contextmanager
    def admit(self, count: int) -> Iterator[None]:
        """Reserve room for `count` images from before they are decoded until they are answered."""
        self.check_room(count)
        self.admitted += count
        try:
            yield
        finally:
            self.admitted -= count

    def record_run(self, seconds_per_image: float) -> None:
        """Keep the median of the recent runs; a single stalled run does not change it. Any thread."""
        self._recent_seconds_per_image.append(seconds_per_image)
        self._seconds_per_image = median_low(self._recent_seconds_per_image)

"""One CUDA session for each of a few batch sizes.

A convolution keeps one cuDNN plan, that of the last shape: alternating sizes in one session would rebuild
every plan at every run. Each session has its own memory arena; the sizes grow by four, so that all of them
together take about 1.4 times the memory of the largest.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatserve.service.engine.cuda.causes import is_out_of_memory
from quatserve.service.engine.cuda.graphs import GraphSession
from quatserve.service.engine.cuda.session import CudaSession
from quatserve.service.engine.session import CUDA
from quatserve.service.engine.warmup import in_time
from quatserve.service.errors import DeviceFailedError, DeviceUnavailableError

BUCKETS = (1, 4, 8, 32, 128, 512)
log = logging.getLogger(__name__)


def bucket_sizes(max_batch: int) -> tuple[int, ...]:
    """The batch sizes that get a session of their own."""
    return (*(size for size in BUCKETS if size < max_batch), max_batch)


class BucketSessions:
    """Runs a batch in the session of its size; batches are padded to one of the sizes before."""

    provider = CUDA

    def __init__(self, sessions: Mapping[int, CudaSession]) -> None:
        self._sessions = dict(sessions)
        self._running = next(iter(self._sessions.values()))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self._sessions)

    def run(self, images: NDArray[np.uint8]) -> NDArray[Any]:
        """One row per image, of the promised shape and type, and finite."""
        self._running = session = self._sessions[len(images)]
        return session.run(images)

    def terminate(self) -> None:
        """Tell the run under way to stop."""
        self._running.terminate()

    def capture(self) -> None:
        """Capture the CUDA graphs; called on the thread that will replay them."""
        for session in self._sessions.values():
            if isinstance(session, GraphSession):
                session.capture()


def open_buckets(
    open_session: Callable[[int], CudaSession],
    image: NDArray[np.uint8],
    max_batch: int,
    max_batch_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> BucketSessions:
    """Open and warm a session for each size, up to the first that is too slow or finds no memory."""
    return BucketSessions(dict(_opened(open_session, image, max_batch, max_batch_s, clock)))


def _opened(
    open_session: Callable[[int], CudaSession],
    image: NDArray[np.uint8],
    max_batch: int,
    max_batch_s: float,
    clock: Callable[[], float],
) -> Iterator[tuple[int, CudaSession]]:
    for size in bucket_sizes(max_batch):
        batch = np.repeat(image[None], size, axis=0)
        try:
            session = open_session(size)
            session.run(batch)  # the first run allocates and chooses plans: not its pace
        except (DeviceUnavailableError, DeviceFailedError) as error:
            if size == 1 or not is_out_of_memory(error):
                raise
            log.warning("larger batches left out", extra={"size": size, "reason": str(error)})
            return
        if size > 1 and not in_time(session.run, batch, max_batch_s, clock):
            log.warning("larger batches left out", extra={"size": size, "reason": "slower than max_batch_s"})
            return
        yield size, session

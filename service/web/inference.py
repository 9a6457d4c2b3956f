"""The steps of an inference request, each bounded in time and memory: upload, decode, queue, run, draw."""

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.requests import Request

from quatserve.service.engine.loaded import LoadedModel
from quatserve.service.engine.results import Outcome
from quatserve.service.errors import DeadlineExceededError
from quatserve.service.imaging.decoder import LARGEST_AT_ONCE, Decoder, PixelBudget, Prepared
from quatserve.service.imaging.images import Pixels, Target, decode
from quatserve.service.imaging.render import Output, render
from quatserve.service.settings import Settings
from quatserve.service.telemetry.metrics import Metrics
from quatserve.service.web.lifecycle import Departure
from quatserve.service.web.parameters import SegmentParameters
from quatserve.service.web.uploads import (
    UploadLimits,
    UploadMemory,
    UploadReservation,
    check_length,
    check_type,
    images_of,
    read_body,
)


@dataclass(frozen=True, slots=True)
class Timings:
    decode_s: float
    queue_s: float
    inference_s: float

    def in_ms(self) -> dict[str, float]:
        stages = {"decode": self.decode_s, "queue": self.queue_s, "inference": self.inference_s}
        return {stage: round(seconds * 1000, 3) for stage, seconds in stages.items()}


class Inference:
    """What the inference routes share: memory, limits and threads."""

    def __init__(self, settings: Settings, metrics: Metrics, pool: Executor) -> None:
        """`pool` decodes and draws images."""
        self._pool, self._stages = pool, metrics.stages
        self._budget = PixelBudget(LARGEST_AT_ONCE * settings.max_image_pixels, settings.deadline_s)
        self._decoder = Decoder(pool, settings.max_image_pixels, self._budget)
        self._deadline_s = settings.deadline_s
        self._max_pixels = settings.max_image_pixels
        self.upload_memory = UploadMemory(settings.upload_memory_bytes)
        self.limits = UploadLimits(
            max_body_bytes=settings.max_body_bytes,
            max_images=settings.max_images,
            timeout_s=settings.upload_timeout_s,
        )

    async def read_images(self, request: Request, reservation: UploadReservation) -> list[bytes]:
        """The files of the upload. Its type and declared length are checked before it is read."""
        headers = dict(request.scope["headers"])
        content_type = headers.get(b"content-type", b"")
        check_type(content_type)
        check_length(headers.get(b"content-length", b""), self.limits.max_body_bytes)
        begun = time.perf_counter()
        body = await read_body(request.receive, self.limits, reservation)
        self._stages["upload"].observe(time.perf_counter() - begun)
        return images_of(content_type, body, self.limits.max_images)

    @asynccontextmanager
    async def deadline(self) -> AsyncIterator[None]:
        """Bounds decoding, waiting, running and drawing together."""
        try:
            async with asyncio.timeout(self._deadline_s):
                yield
        except TimeoutError:
            raise DeadlineExceededError(f"no answer within {self._deadline_s:g} s") from None

    async def run(
        self, loaded: LoadedModel, files: list[bytes], departure: Departure
    ) -> tuple[list[Prepared], Outcome, Timings]:
        """Decode the files and run the model on them."""
        with loaded.lease(), loaded.batcher.admit(len(files)):
            begun = time.perf_counter()
            prepared = await self._decoder.prepare(files, Target.of(loaded.model.description), departure)
            decode_s = time.perf_counter() - begun
            outcome = await loaded.batcher.infer([item.pixels for item in prepared], departure.watch)
        self._stages["decode"].observe(decode_s)
        self._stages["queue"].observe(outcome.queue_s)
        self._stages["inference"].observe(outcome.run_s)
        return prepared, outcome, Timings(decode_s, outcome.queue_s, outcome.run_s)

    async def draw(
        self,
        road: Pixels,
        size: tuple[int, int],
        parameters: SegmentParameters,
        data: bytes,
        departure: Departure,
    ) -> tuple[bytes, float]:
        """The PNG of the response, and the fraction of road in it.

        An overlay decodes its photo a second time: kept since the first, the photo of each waiting request
        would stay in memory.
        """

        def job() -> tuple[bytes, float]:
            with self._budget.hold(size, departure):
                overlay = parameters.output is Output.OVERLAY
                photo = decode(data, self._max_pixels) if overlay else None
                return render(road, size, parameters.output, parameters.threshold, photo)

        begun = time.perf_counter()
        drawn = await asyncio.get_running_loop().run_in_executor(self._pool, job)
        self._stages["render"].observe(time.perf_counter() - begun)
        return drawn

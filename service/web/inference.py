"""The two inference routes: upload -> decode -> queue -> session -> answer, each step bounded."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson
from starlette.requests import Request
from starlette.responses import Response

from quatserve.service.artifact import Task
from quatserve.service.engine.loaded import LoadedModel
from quatserve.service.engine.predictions import top
from quatserve.service.engine.registry import Registry
from quatserve.service.engine.results import Outcome
from quatserve.service.errors import BadParameterError, DeadlineExceededError
from quatserve.service.imaging.decoder import LARGEST_AT_ONCE, Decoder, PixelBudget, Prepared
from quatserve.service.imaging.images import Pixels, Target, decode
from quatserve.service.imaging.render import Output, render
from quatserve.service.settings import Settings
from quatserve.service.telemetry.metrics import Metrics
from quatserve.service.web.lifecycle import DEPARTURE, Departure
from quatserve.service.web.queries import SegmentQuery, classify_query, segment_query
from quatserve.service.web.tensors import HEADER_LENGTH, read_request, write_response
from quatserve.service.web.uploads import (
    Hold,
    UploadLimits,
    UploadMemory,
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


def departure_of(request: Request) -> Departure:
    """The connection's own; elsewhere than on our server, one that never happens."""
    found = request.scope.get("extensions", {}).get(DEPARTURE)
    return found if isinstance(found, Departure) else Departure()


class Inference:
    """Handlers of `POST /classify` and `POST /segment`."""

    def __init__(
        self, settings: Settings, registry: Registry, metrics: Metrics, pool: Executor, parser: Executor
    ) -> None:
        """`pool` is for images; `parser`, of one thread, for documents, 30 times their bytes in memory."""
        self._registry, self._pool, self._parser = registry, pool, parser
        self._stages = metrics.stages
        self._budget = PixelBudget(LARGEST_AT_ONCE * settings.max_image_pixels, settings.deadline_s)
        self._decoder = Decoder(pool, settings.max_image_pixels, self._budget)
        self._deadline_s = settings.deadline_s
        self._max_pixels = settings.max_image_pixels
        self._memory = UploadMemory(settings.upload_memory_bytes)
        self._limits = UploadLimits(
            max_body_bytes=settings.max_body_bytes,
            max_images=settings.max_images,
            timeout_s=settings.upload_timeout_s,
        )

    async def classify(self, request: Request) -> Response:
        query = classify_query(request.scope["query_string"])
        with self._memory.hold() as hold:
            files = await self._upload(request, Task.CLASSIFICATION, query.model, hold)
            async with self._deadline():
                serving = self._registry.resolve(Task.CLASSIFICATION, query.model)
                _, outcome, timings = await self._infer(serving, files, departure_of(request))
        description = serving.model.description
        body = orjson.dumps(
            {
                "model": description.name,
                "version": description.version,
                "results": [
                    {"predictions": top(row, description.labels, query.top_k)} for row in outcome.rows
                ],
                "timings_ms": timings.in_ms(),
            }
        )
        return Response(body, media_type="application/json")

    async def segment(self, request: Request) -> Response:
        query = segment_query(request.scope["query_string"])
        with self._memory.hold() as hold:
            files = await self._upload(request, Task.SEGMENTATION, query.model, hold)
            if len(files) != 1:
                raise BadParameterError(f"one image is segmented a request, not {len(files)}")
            async with self._deadline():
                serving = self._registry.resolve(Task.SEGMENTATION, query.model)
                prepared, outcome, timings = await self._infer(serving, files, departure_of(request))
                picture, fraction = await self._render(
                    outcome.rows[0], prepared[0].size, query, files[0], departure_of(request)
                )
        return Response(picture, media_type="image/png", headers=_headers(serving, fraction, timings))

    async def tensors(self, request: Request, find: Callable[[], LoadedModel]) -> Response:
        """One request of the Open Inference Protocol; `find` names the model, before and after the upload."""
        find().batcher.check_room(1)
        check_length(request.headers.get("content-length", "").encode(), self._limits.max_body_bytes)
        with self._memory.hold() as hold:
            body = await read_body(request.receive, self._limits, hold)
            async with self._deadline():
                with find().lease() as serving:
                    description, length = serving.model.description, request.headers.get(HEADER_LENGTH)
                    asked = await asyncio.get_running_loop().run_in_executor(
                        self._parser, read_request, body, length, description, self._limits.max_images
                    )
                    with serving.batcher.admit(len(asked.images)):
                        outcome = await serving.batcher.infer(list(asked.images), departure_of(request).watch)
        content, headers = write_response(asked, description, outcome.rows)
        return Response(content, headers=headers)

    async def _upload(self, request: Request, task: Task, model: str | None, hold: Hold) -> list[bytes]:
        """The images of the body; whatever can be refused is refused before it is read."""
        headers = dict(request.scope["headers"])
        content_type = headers.get(b"content-type", b"")
        self._registry.resolve(task, model).batcher.check_room(1)
        check_type(content_type)
        check_length(headers.get(b"content-length", b""), self._limits.max_body_bytes)
        begun = time.perf_counter()
        body = await read_body(request.receive, self._limits, hold)
        self._stages["upload"].observe(time.perf_counter() - begun)
        return images_of(content_type, body, self._limits.max_images)

    @asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        """Covers decoding, waiting, running and rendering."""
        try:
            async with asyncio.timeout(self._deadline_s):
                yield
        except TimeoutError:
            raise DeadlineExceededError(f"no answer within {self._deadline_s:g} s") from None

    async def _infer(
        self, serving: LoadedModel, files: list[bytes], departure: Departure
    ) -> tuple[list[Prepared], Outcome, Timings]:
        with serving.lease(), serving.batcher.admit(len(files)):
            begun = time.perf_counter()
            prepared = await self._decoder.prepare(files, Target.of(serving.model.description), departure)
            decode_s = time.perf_counter() - begun
            outcome = await serving.batcher.infer([item.pixels for item in prepared], departure.watch)
        self._stages["decode"].observe(decode_s)
        self._stages["queue"].observe(outcome.queue_s)
        self._stages["inference"].observe(outcome.run_s)
        return prepared, outcome, Timings(decode_s, outcome.queue_s, outcome.run_s)

    async def _render(
        self,
        road: Pixels,
        size: tuple[int, int],
        query: SegmentQuery,
        data: bytes,
        departure: Departure,
    ) -> tuple[bytes, float]:
        """An overlay decodes its photo again: kept, each waiting request would hold it whole in memory."""

        def job() -> tuple[bytes, float]:
            overlay = query.output is Output.OVERLAY
            with self._budget.hold(size, departure):
                photo = decode(data, self._max_pixels) if overlay else None
                return render(road, size, query.output, query.threshold, photo)

        begun = time.perf_counter()
        rendered = await asyncio.get_running_loop().run_in_executor(self._pool, job)
        self._stages["render"].observe(time.perf_counter() - begun)
        return rendered


def _headers(serving: LoadedModel, fraction: float, timings: Timings) -> dict[str, str]:
    description = serving.model.description
    return {
        "x-model": description.name,
        "x-model-version": str(description.version),
        "x-road-fraction": f"{fraction:.6f}",
        "server-timing": ", ".join(f"{stage};dur={ms}" for stage, ms in timings.in_ms().items()),
    }

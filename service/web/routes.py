"""`POST /classify` and `POST /segment`: what they take, what they answer, and the steps in between."""

from typing import Annotated, get_type_hints

from fastapi import APIRouter, Depends, Query
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from quatserve.service.artifact import Task
from quatserve.service.engine.predictions import top
from quatserve.service.engine.registry import Registry
from quatserve.service.errors import BadParameterError
from quatserve.service.web.inference import Inference
from quatserve.service.web.lifecycle import Lifecycle, departure_of
from quatserve.service.web.openapi import image_body, png_response, problem_responses
from quatserve.service.web.parameters import ClassifyParameters, SegmentParameters, read_query

STATUSES = (400, 401, 404, 408, 413, 415, 422, 500, 503, 504)
SEGMENT_HEADERS = ("x-model", "x-model-version", "x-road-fraction", "server-timing")


class Prediction(BaseModel):
    label: str
    index: int
    probability: float


class Result(BaseModel):
    predictions: list[Prediction]


class TimingsMs(BaseModel):
    decode: float
    queue: float
    inference: float


class Classification(BaseModel):
    """`results` has one entry per image, in the order they were sent."""

    model: str
    version: int
    results: list[Result]
    timings_ms: TimingsMs


def inference_router(inference: Inference, registry: Registry, lifecycle: Lifecycle) -> APIRouter:
    """The router. It does not declare the body to FastAPI, which would read it before we can refuse it."""
    router = APIRouter(
        tags=["inference"],
        dependencies=[Depends(read_query)],
        responses=problem_responses(*STATUSES),
    )

    @router.post(
        "/classify",
        summary="Classify images",
        response_model=Classification,
        response_description="The most probable classes",
        openapi_extra=image_body("an image; for several, repeat `files`"),
    )
    async def classify(request: Request, parameters: Annotated[ClassifyParameters, Query()]) -> Response:
        departure = departure_of(request)
        with lifecycle.accept(), inference.upload_memory.reserve() as reservation:
            registry.resolve(Task.CLASSIFICATION, parameters.model).batcher.check_room(1)
            files = await inference.read_images(request, reservation)
            async with inference.deadline():
                loaded = registry.resolve(Task.CLASSIFICATION, parameters.model)
                _, outcome, timings = await inference.run(loaded, files, departure)
        description = loaded.model.description
        rows = [top(row, description.labels, parameters.top_k) for row in outcome.rows]
        answer = Classification(
            model=description.name,
            version=description.version,
            results=[Result(predictions=predictions) for predictions in rows],
            timings_ms=TimingsMs(**timings.in_ms()),
        )
        return Response(answer.model_dump_json(), media_type="application/json")

    @router.post(
        "/segment",
        summary="Find the road in an image",
        response_class=Response,
        responses={200: png_response("The mask, heatmap or overlay", SEGMENT_HEADERS)},
        openapi_extra=image_body("one image"),
    )
    async def segment(request: Request, parameters: Annotated[SegmentParameters, Query()]) -> Response:
        departure = departure_of(request)
        with lifecycle.accept(), inference.upload_memory.reserve() as reservation:
            registry.resolve(Task.SEGMENTATION, parameters.model).batcher.check_room(1)
            files = await inference.read_images(request, reservation)
            if len(files) != 1:
                raise BadParameterError(f"/segment takes exactly one image per request; got {len(files)}")
            async with inference.deadline():
                loaded = registry.resolve(Task.SEGMENTATION, parameters.model)
                prepared, outcome, timings = await inference.run(loaded, files, departure)
                picture, fraction = await inference.draw(
                    outcome.rows[0][0], prepared[0].size, parameters, files[0], departure
                )
        description = loaded.model.description
        headers = {
            "x-model": description.name,
            "x-model-version": str(description.version),
            "x-road-fraction": f"{fraction:.6f}",
            "server-timing": ", ".join(f"{stage};dur={ms}" for stage, ms in timings.in_ms().items()),
        }
        return Response(picture, media_type="image/png", headers=headers)

    return router


class DirectDispatch:
    """An ASGI application in front of FastAPI's: calls the endpoints above with the models that they declare.

    FastAPI's middleware, routing and dependency layers are a fifth of the work for a small image, as
    `benchmarks/web.py` measures. FastAPI documents the same routes, and answers every other request.
    """

    def __init__(self, api: ASGIApp, router: APIRouter) -> None:
        routes = [route for route in router.routes if isinstance(route, APIRoute)]
        for route in routes:
            assert route.methods == {"POST"}, f"{route.path} takes another method too"
            assert [item.dependency for item in route.dependencies] == [read_query], "others would be skipped"
        self._api = api
        self._routes = {route.path: (route, get_type_hints(route.endpoint)["parameters"]) for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._routes.get(scope["path"]) if scope.get("method") == "POST" else None
        if found is None:
            await self._api(scope, receive, send)
            return
        route, model = found
        scope["route"] = route  # as FastAPI sets it, for the metrics
        request = Request(scope, receive)
        response = await route.endpoint(request, model.model_validate(await read_query(request)))
        await response(scope, receive, send)

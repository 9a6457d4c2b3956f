"""What `/openapi.json` says of the inference routes, which read their input themselves."""

from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from quatserve.service.artifact import Task
from quatserve.service.imaging.render import Output
from quatserve.service.web.inference import Inference
from quatserve.service.web.problems import INTERNAL, KINDS, MEDIA_TYPE
from quatserve.service.web.queries import MAX_TOP_K

DESCRIPTION = "Image classification and road segmentation by quaternion networks."
IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/bmp")
INFERENCE_ERRORS = (400, 401, 404, 408, 413, 415, 422, 500, 503, 504)


class Problem(BaseModel):
    """RFC 9457: `type` is stable and for programs, `detail` is for people."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    request_id: str


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


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error answers of a route, by status, each listing the types it may carry."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        slugs = [kind.slug for kind in (*KINDS.values(), INTERNAL) if kind.status == status]
        schema = {"$ref": "#/components/schemas/Problem"}
        found[status] = {"description": ", ".join(slugs), "content": {MEDIA_TYPE: {"schema": schema}}}
    return found


def _body(what: str) -> dict[str, Any]:
    """A form, or the image itself. The schema asks for `file`; a form cannot say "one of these, repeated"."""
    binary = {"type": "string", "format": "binary"}
    kinds = ", ".join(IMAGE_TYPES)
    form = {
        "schema": {
            "type": "object",
            "properties": {"file": binary | {"description": what}},
            "required": ["file"],
        },
        "encoding": {"file": {"contentType": kinds}},
    }
    return {
        "required": True,
        "content": {"multipart/form-data": form} | {k: {"schema": binary} for k in IMAGE_TYPES},
    }


def _parameter(name: str, what: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": what, "schema": schema}


TOP_K = _parameter(
    "top_k",
    "how many classes, likeliest first",
    {"type": "integer", "minimum": 1, "maximum": MAX_TOP_K, "default": 5},
)
OUTPUT = _parameter(
    "output",
    "mask (0 or 255), heatmap (255 p), or the photo with the road tinted",
    {"type": "string", "enum": list(Output), "default": "mask"},
)
THRESHOLD = _parameter(
    "threshold",
    "road where the probability reaches it",
    {"type": "number", "minimum": 0, "maximum": 1, "default": 0.5},
)


def add_inference_routes(app: FastAPI, inference: Inference) -> None:
    """Known to the router and to the schema; the gateway calls the same handlers directly."""
    app.add_api_route(
        "/classify",
        inference.classify,
        methods=["POST"],
        tags=["inference"],
        summary="Classify images",
        responses=errors(*INFERENCE_ERRORS)
        | {200: {"model": Classification, "description": "The likeliest classes"}},
        openapi_extra={"parameters": [TOP_K], "requestBody": _body("an image; for several, repeat `files`")},
    )
    png = {"image/png": {"schema": {"type": "string", "format": "binary"}}}
    names = ("x-model", "x-model-version", "x-road-fraction", "server-timing")
    headers = {name: {"schema": {"type": "string"}} for name in names}
    app.add_api_route(
        "/segment",
        inference.segment,
        methods=["POST"],
        tags=["inference"],
        summary="Find the road in an image",
        responses=errors(*INFERENCE_ERRORS)
        | {200: {"content": png, "headers": headers, "description": "A picture"}},
        openapi_extra={"parameters": [OUTPUT, THRESHOLD], "requestBody": _body("one image")},
        response_class=Response,
    )


def complete_schema(app: FastAPI, names: Callable[[Task], list[str]]) -> None:
    """Add what FastAPI cannot know: the error document, and the models served at this moment."""
    generate = app.openapi

    @lru_cache(maxsize=1)  # whoever asks needs no key
    def complete(classifiers: tuple[str, ...], segmenters: tuple[str, ...]) -> dict[str, Any]:
        schema = deepcopy(generate())
        schema["components"]["schemas"]["Problem"] = Problem.model_json_schema()
        for path, served in (("/classify", classifiers), ("/segment", segmenters)):
            choice = {"type": "string", "enum": list(served)}
            parameter = _parameter("model", "a model's name; the default of the task otherwise", choice)
            schema["paths"][path]["post"]["parameters"].insert(0, parameter)
        return schema

    def openapi() -> dict[str, Any]:
        return complete(tuple(names(Task.CLASSIFICATION)), tuple(names(Task.SEGMENTATION)))

    app.openapi = openapi  # type: ignore[method-assign]

"""What `/openapi.json` and `/docs` say. No asset comes from elsewhere, and the examples run as they are."""

import base64
import html
import io
from functools import cache
from typing import Any

from fastapi import FastAPI
from PIL import Image
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import HTMLResponse

from service.images import Output
from service.inference import Inference
from service.problems import HEADERS_TOO_LARGE, INTERNAL, KINDS, MEDIA_TYPE, METHOD_NOT_ALLOWED, NOT_FOUND
from service.queries import MAX_TOP_K

DESCRIPTION = "Image classification and road segmentation by quaternion networks."
IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/bmp")
INFERENCE_ERRORS = (400, 401, 404, 408, 413, 415, 422, 500, 503, 504)
CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


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


def _body(several: bool) -> dict[str, Any]:
    binary = {"type": "string", "format": "binary"}
    fields: dict[str, Any] = {"file": binary}
    if several:
        fields["files"] = {"type": "array", "items": binary, "minItems": 1}
    form = {"type": "object", "properties": fields, "anyOf": [{"required": [name]} for name in fields]}
    content: dict[str, Any] = {"multipart/form-data": {"schema": form}}
    return {"required": True, "content": content | {kind: {"schema": binary} for kind in IMAGE_TYPES}}


def _parameter(name: str, what: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": what, "schema": schema}


MODEL = _parameter("model", "a model's name; the default of the task otherwise", {"type": "string"})
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
        openapi_extra={"parameters": [MODEL, TOP_K], "requestBody": _body(several=True)},
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
        openapi_extra={"parameters": [MODEL, OUTPUT, THRESHOLD], "requestBody": _body(several=False)},
        response_class=HTMLResponse,
    )
    _add_components(app)


def _add_components(app: FastAPI) -> None:
    """Schemas that are referred to by hand; FastAPI collects only those of its own routes."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        schema = generate()
        schema["components"]["schemas"]["Problem"] = Problem.model_json_schema()
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


@cache
def example_image() -> str:
    """A small picture in base64, so that an example needs no file."""
    gradient = Image.linear_gradient("L").resize((32, 32))
    picture = Image.merge("RGB", (gradient, gradient.rotate(90), gradient.rotate(180)))
    stream = io.BytesIO()
    picture.quantize(16).save(stream, "PNG", optimize=True)
    return base64.b64encode(stream.getvalue()).decode()


def examples(base_url: str) -> dict[str, str]:
    """Commands to paste into a shell; each is run by the tests exactly as it is shown."""
    image = f"echo {example_image()} | base64 -d"
    return {
        "Classify an image": f"{image} | curl -sf -F file=@- '{base_url}/classify?top_k=3'",
        "The same, as a raw body": (
            f"{image} | curl -sf -H 'content-type: image/png' --data-binary @- {base_url}/classify"
        ),
        "Find the road": f"{image} | curl -sf -F file=@- '{base_url}/segment?output=mask' -o mask.png",
        "What is served": f"curl -sf {base_url}/models",
        "Is it ready": f"curl -sf {base_url}/readyz",
    }


def _routes(schema: dict[str, Any]) -> str:
    rows = []
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            notes = "".join(
                f"<br><code>?{p['name']}=</code> {html.escape(p.get('description', ''))}"
                for p in operation.get("parameters", [])
                if p["in"] == "query"
            )
            rows.append(
                f"<tr><td><code>{method.upper()} {path}</code><td>{html.escape(operation['summary'])}{notes}"
            )
    return "<table>" + "".join(rows) + "</table>"


def _problems() -> str:
    kinds = sorted(
        {*KINDS.values(), INTERNAL, NOT_FOUND, METHOD_NOT_ALLOWED, HEADERS_TOO_LARGE}, key=lambda k: k.status
    )
    rows = [f"<tr><td>{kind.status}<td><code>{kind.type}</code><td>{kind.title}" for kind in kinds]
    return "<table>" + "".join(rows) + "</table>"


def docs_page(schema: dict[str, Any], base_url: str) -> str:
    """One page: routes, examples, errors."""
    blocks = "".join(
        f"<h3>{title}</h3><pre><code>{html.escape(command)}</code></pre>"
        for title, command in examples(base_url).items()
    )
    style = (
        "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
        "color-scheme:light dark}"
        "pre{white-space:pre-wrap;overflow-wrap:anywhere;padding:.8rem;border:1px solid #8886}"
        "td{vertical-align:top;padding:.3rem 1rem .3rem 0}"
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{schema['info']['title']}</title><style>{style}</style><h1>{schema['info']['title']}</h1>"
        f"<p>{schema['info']['description']} The schema is at <a href=openapi.json>openapi.json</a>. "
        "Where keys are set, add <code>-H 'Authorization: Bearer KEY'</code>."
        f"<h2>Routes</h2>{_routes(schema)}<h2>Examples</h2>{blocks}<h2>Errors</h2>"
        f"<p>Every error is a document of type <code>{MEDIA_TYPE}</code>.{_problems()}</html>"
    )


def add_docs(app: FastAPI) -> None:
    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        page = docs_page(app.openapi(), str(request.base_url).rstrip("/"))
        return HTMLResponse(page, headers={"content-security-policy": CONTENT_SECURITY_POLICY})

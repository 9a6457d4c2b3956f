"""What FastAPI cannot derive for `/openapi.json`: the body of an upload, and the document of an error."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from quatserve.service.web.problems import INTERNAL, MEDIA_TYPE, PROBLEM_TYPES

DESCRIPTION = "Image classification and road segmentation by quaternion networks."
IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/bmp")
BINARY = {"type": "string", "format": "binary"}


class Problem(BaseModel):
    """RFC 9457: `type` is stable and for programs, `detail` is for people."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    request_id: str


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, by status; each lists the problems that have it."""
    schema = {"$ref": f"#/components/schemas/{Problem.__name__}"}
    found: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        slugs = [kind.slug for kind in (*PROBLEM_TYPES.values(), INTERNAL) if kind.status == status]
        found[status] = {"description": ", ".join(slugs), "content": {MEDIA_TYPE: {"schema": schema}}}
    return found


def image_body(description: str) -> dict[str, Any]:
    """A form, or the image itself. OpenAPI cannot say "`file`, or `files` repeated": it names `file`."""
    form = {
        "schema": {
            "type": "object",
            "properties": {"file": BINARY | {"description": description}},
            "required": ["file"],
        },
        "encoding": {"file": {"contentType": ", ".join(IMAGE_TYPES)}},
    }
    raw = {kind: {"schema": BINARY} for kind in IMAGE_TYPES}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": form} | raw}}


def png_response(description: str, headers: Sequence[str]) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"image/png": {"schema": BINARY}},
        "headers": {name: {"schema": {"type": "string"}} for name in headers},
    }


def add_problem_schema(app: FastAPI) -> None:
    """FastAPI lists the models of JSON responses alone; ours is of another media type."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        document["components"]["schemas"][Problem.__name__] = Problem.model_json_schema()
        return document

    app.openapi = openapi  # type: ignore[method-assign]

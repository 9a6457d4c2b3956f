"""Routes of the Open Inference Protocol v2, for clients that speak it already."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from quatserve.service.engine.loaded import LoadedModel
from quatserve.service.engine.registry import Registry
from quatserve.service.errors import UnknownModelError
from quatserve.service.web.catalogue import readiness
from quatserve.service.web.inference import Inference
from quatserve.service.web.lifecycle import Lifecycle, departure_of
from quatserve.service.web.openapi import problem_responses
from quatserve.service.web.tensors import HEADER_LENGTH, metadata, read_request, write_response
from quatserve.service.web.uploads import check_length, read_body

EXTENSIONS = ["binary_tensor_data"]
TAG = "open inference protocol"
INFER_STATUSES = (400, 404, 408, 413, 422, 500, 503, 504)
TENSOR = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"const": "images"},
        "datatype": {"const": "UINT8"},
        "shape": {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 4},
        "data": {"type": "array", "items": {}},
    },
}
INFER_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["inputs"],
                "properties": {"inputs": {"type": "array", "items": TENSOR, "minItems": 1, "maxItems": 1}},
            }
        }
    },
}


def _find(registry: Registry, name: str, version: str) -> LoadedModel:
    loaded = registry.get(name)
    if version != str(loaded.model.description.version):
        raise UnknownModelError(f"{name} is served as version {loaded.model.description.version}")
    return loaded


async def run_tensors(
    request: Request, inference: Inference, parser: Executor, find: Callable[[], LoadedModel]
) -> Response:
    """Answer one request. Calls `find` before and after the upload: the model may be swapped meanwhile."""
    find().batcher.check_room(1)
    check_length(request.headers.get("content-length", "").encode(), inference.limits.max_body_bytes)
    departure = departure_of(request)
    with inference.upload_memory.reserve() as reservation:
        body = await read_body(request.receive, inference.limits, reservation)
        async with inference.deadline():
            with find().lease() as loaded:
                description, head_length = loaded.model.description, request.headers.get(HEADER_LENGTH)
                tensors = await asyncio.get_running_loop().run_in_executor(
                    parser, read_request, body, head_length, description, inference.limits.max_images
                )
                with loaded.batcher.admit(len(tensors.images)):
                    outcome = await loaded.batcher.infer(list(tensors.images), departure.watch)
    content, headers = write_response(tensors, description, outcome.rows)
    return Response(content, headers=headers)


def protocol_v2(
    inference: Inference,
    parser: Executor,
    registry: Registry,
    lifecycle: Lifecycle,
    version: str,
    repository: bool,
) -> APIRouter:
    """The router. The repository's routes exist only where API keys protect them."""
    router = APIRouter(prefix="/v2", tags=[TAG], responses=problem_responses(401))

    @router.get("", summary="The server")
    async def server() -> dict[str, Any]:
        names = EXTENSIONS + (["model_repository"] if repository else [])
        return {"name": "quatserve", "version": version, "extensions": names}

    @router.get("/health/live", summary="Whether the process answers")
    async def live() -> dict[str, bool]:
        return {"live": True}

    @router.get(
        "/health/ready",
        summary="Whether the service takes work",
        responses={503: {"description": "It does not"}},
    )
    async def ready() -> Response:
        found = readiness(registry, lifecycle).ready
        return JSONResponse({"ready": found}, 200 if found else 503)

    _add_models(router, inference, parser, registry, lifecycle)
    if repository:
        _add_repository(router, registry, lifecycle)
    return router


def _add_models(
    router: APIRouter, inference: Inference, parser: Executor, registry: Registry, lifecycle: Lifecycle
) -> None:
    missing = problem_responses(404)
    infers: dict[str, Any] = {
        "responses": problem_responses(*INFER_STATUSES),
        "openapi_extra": {"requestBody": INFER_BODY},
    }

    @router.get("/models/{name}", summary="What a model takes and returns", responses=missing)
    async def describe(name: str) -> dict[str, Any]:
        return metadata(registry.get(name).model.description)

    @router.get(
        "/models/{name}/ready", summary="Whether a model is served", responses=problem_responses(404, 503)
    )
    async def model_ready(name: str) -> dict[str, Any]:
        lifecycle.check()
        return {"name": registry.get(name).model.description.name, "ready": True}

    @router.post("/models/{name}/infer", summary="Run tensors through a model", **infers)
    async def infer(request: Request, name: str) -> Response:
        with lifecycle.accept():
            return await run_tensors(request, inference, parser, lambda: registry.get(name))

    one = "/models/{name}/versions/{version}"

    @router.get(one, summary="What a version takes and returns", responses=missing)
    async def describe_version(name: str, version: str) -> dict[str, Any]:
        return metadata(_find(registry, name, version).model.description)

    @router.get(f"{one}/ready", summary="Whether a version is served", responses=problem_responses(404, 503))
    async def version_ready(name: str, version: str) -> dict[str, Any]:
        lifecycle.check()
        return {"name": _find(registry, name, version).model.description.name, "ready": True}

    @router.post(f"{one}/infer", summary="Run tensors through a version", **infers)
    async def infer_version(request: Request, name: str, version: str) -> Response:
        with lifecycle.accept():
            return await run_tensors(request, inference, parser, lambda: _find(registry, name, version))


def _add_repository(router: APIRouter, registry: Registry, lifecycle: Lifecycle) -> None:
    missing = problem_responses(404)

    @router.post("/repository/index", summary="Every model on disk, and its state")
    async def index() -> list[dict[str, str]]:
        ready = [
            {"name": s.model.description.name, "version": str(s.model.description.version), "state": "READY"}
            for s in registry.loaded()
        ]
        unloaded = [
            {"name": name, "state": "UNAVAILABLE", "reason": "unloaded"} for name in sorted(registry.unloaded)
        ]
        refused = [
            {"name": r.name, "version": str(r.version), "state": "UNAVAILABLE", "reason": r.reason}
            for r in registry.refused
        ]
        return ready + unloaded + refused

    @router.post(
        "/repository/models/{name}/load",
        summary="Load the highest version on disk",
        responses=problem_responses(404, 409, 503),
    )
    async def load(name: str) -> Response:
        with lifecycle.accept():
            await registry.load(name)
        return JSONResponse({})

    @router.post(
        "/repository/models/{name}/unload",
        summary="Stop serving a model until it is loaded again",
        responses=missing,
    )
    async def unload(name: str) -> Response:
        registry.unload(name)
        return JSONResponse({})

"""Routes of the Open Inference Protocol v2, for clients that speak it already."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from quatserve.service.engine.loaded import LoadedModel
from quatserve.service.engine.registry import Registry
from quatserve.service.errors import UnknownModelError
from quatserve.service.web.catalogue import readiness
from quatserve.service.web.inference import Inference
from quatserve.service.web.lifecycle import Lifecycle
from quatserve.service.web.openapi import errors
from quatserve.service.web.tensors import metadata

EXTENSIONS = ["binary_tensor_data"]
TAG = "open inference protocol"
INFER_ERRORS = (400, 404, 408, 413, 422, 500, 503, 504)
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
    serving = registry.get(name)
    if version != str(serving.model.description.version):
        raise UnknownModelError(f"{name} is served as version {serving.model.description.version}")
    return serving


def protocol_v2(
    inference: Inference, registry: Registry, lifecycle: Lifecycle, version: str, repository: bool
) -> APIRouter:
    """The router; the repository's routes are there only where API keys guard them."""
    router = APIRouter(prefix="/v2", tags=[TAG], responses=errors(401))

    @router.get("", summary="The server")
    async def server() -> dict[str, Any]:
        names = EXTENSIONS + (["model_repository"] if repository else [])
        return {"name": "quatserve", "version": version, "extensions": names}

    @router.get("/health/live", summary="The process answers")
    async def live() -> dict[str, bool]:
        return {"live": True}

    @router.get("/health/ready", summary="Work is welcome", responses={503: {"description": "Not now"}})
    async def ready() -> Response:
        found = readiness(registry, lifecycle).ready
        return JSONResponse({"ready": found}, 200 if found else 503)

    _add_models(router, inference, registry, lifecycle)
    if repository:
        _add_repository(router, registry, lifecycle)
    return router


def _add_models(router: APIRouter, inference: Inference, registry: Registry, lifecycle: Lifecycle) -> None:
    missing = errors(404)
    infers: dict[str, Any] = {
        "responses": errors(*INFER_ERRORS),
        "openapi_extra": {"requestBody": INFER_BODY},
    }

    @router.get("/models/{name}", summary="What a model takes and returns", responses=missing)
    async def describe(name: str) -> dict[str, Any]:
        return metadata(registry.get(name).model.description)

    @router.get("/models/{name}/ready", summary="A model is served", responses=errors(404, 503))
    async def model_ready(name: str) -> dict[str, Any]:
        lifecycle.check()
        return {"name": registry.get(name).model.description.name, "ready": True}

    @router.post("/models/{name}/infer", summary="Run tensors through a model", **infers)
    async def infer(request: Request, name: str) -> Response:
        with lifecycle.accept():
            return await inference.tensors(request, lambda: registry.get(name))

    one = "/models/{name}/versions/{version}"

    @router.get(one, summary="What a version takes and returns", responses=missing)
    async def describe_version(name: str, version: str) -> dict[str, Any]:
        return metadata(_find(registry, name, version).model.description)

    @router.get(f"{one}/ready", summary="A version is served", responses=errors(404, 503))
    async def version_ready(name: str, version: str) -> dict[str, Any]:
        lifecycle.check()
        return {"name": _find(registry, name, version).model.description.name, "ready": True}

    @router.post(f"{one}/infer", summary="Run tensors through a version", **infers)
    async def infer_version(request: Request, name: str, version: str) -> Response:
        with lifecycle.accept():
            return await inference.tensors(request, lambda: _find(registry, name, version))


def _add_repository(router: APIRouter, registry: Registry, lifecycle: Lifecycle) -> None:
    missing = errors(404)

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
        responses=errors(404, 409, 503),
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

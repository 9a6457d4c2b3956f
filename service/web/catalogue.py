"""The routes that describe the service: models, health, readiness, metrics."""

from fastapi import APIRouter, Response
from pydantic import BaseModel

from quatserve.service.artifact import Description
from quatserve.service.engine.loaded import LoadedModel
from quatserve.service.engine.registry import Registry
from quatserve.service.telemetry.metrics import CONTENT_TYPE, Metrics
from quatserve.service.web.lifecycle import Lifecycle
from quatserve.service.web.openapi import problem_responses


class ServedModel(BaseModel):
    """A loaded model: the description in its artifact, and how it runs here."""

    name: str
    version: int
    task: str
    precision: str
    provider: str
    max_batch: int
    probe_difference: float
    fallback_reason: str | None
    description: Description


class RefusedVersion(BaseModel):
    name: str
    version: int
    reason: str


class Models(BaseModel):
    models: list[ServedModel]
    refused: list[RefusedVersion]


class Health(BaseModel):
    status: str


class ReadyModel(BaseModel):
    name: str
    version: int
    precision: str
    provider: str
    fallback_reason: str | None


class Readiness(BaseModel):
    """`ready` says whether to send work here; the other fields say why, and on what it runs."""

    ready: bool
    draining: bool
    stuck: bool
    models: list[ReadyModel]
    missing: list[str]
    refused: list[RefusedVersion]


def served_model(loaded: LoadedModel) -> ServedModel:
    model, description = loaded.model, loaded.model.description
    return ServedModel(
        name=description.name,
        version=description.version,
        task=description.task,
        precision=model.precision,
        provider=model.provider,
        max_batch=model.max_batch,
        probe_difference=model.probe_difference,
        fallback_reason=model.fallback_reason,
        description=description,
    )


def _refused(registry: Registry) -> list[RefusedVersion]:
    return [RefusedVersion(name=r.name, version=r.version, reason=r.reason) for r in registry.refused]


def readiness(registry: Registry, lifecycle: Lifecycle) -> Readiness:
    """Ready when every required model is loaded, and the service neither drains nor is stuck."""
    fields = ReadyModel.model_fields.keys()
    missing = registry.missing()
    return Readiness(
        ready=bool(registry.loaded()) and not (missing or lifecycle.draining or lifecycle.stuck),
        draining=lifecycle.draining,
        stuck=lifecycle.stuck,
        models=[
            ReadyModel(**served_model(loaded).model_dump(include=set(fields))) for loaded in registry.loaded()
        ],
        missing=missing,
        refused=_refused(registry),
    )


def catalogue(registry: Registry, lifecycle: Lifecycle, metrics: Metrics) -> APIRouter:
    """The router."""
    router = APIRouter()
    keyed = problem_responses(401)

    @router.get("/models", tags=["models"], summary="All served models and refused versions", responses=keyed)
    async def list_models() -> Models:
        return Models(
            models=[served_model(loaded) for loaded in registry.loaded()], refused=_refused(registry)
        )

    @router.get("/models/{name}", tags=["models"], summary="One model", responses=problem_responses(401, 404))
    async def show_model(name: str) -> ServedModel:
        return served_model(registry.get(name))

    @router.get("/healthz", tags=["health"], summary="Whether the process answers")
    async def healthz() -> Health:
        return Health(status="alive")

    @router.get(
        "/readyz",
        tags=["health"],
        summary="Whether the service takes work",
        responses={503: {"model": Readiness, "description": "It does not; the body says why"}},
    )
    async def readyz(response: Response) -> Readiness:
        found = readiness(registry, lifecycle)
        response.status_code = 200 if found.ready else 503
        return found

    @router.get(
        "/metrics",
        tags=["health"],
        summary="Metrics for Prometheus",
        response_class=Response,
        responses=keyed | {200: {"content": {"text/plain": {}}, "description": "Prometheus text format"}},
    )
    async def show_metrics() -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    return router

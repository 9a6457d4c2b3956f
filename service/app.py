"""The application: `create_app(settings)` wires everything; nothing happens at import."""

from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quatserve.service.engine.cpus import lower_priority, usable_cpus
from quatserve.service.engine.load import Model, load_model
from quatserve.service.engine.loaded import LoadedModel
from quatserve.service.engine.registry import Registry
from quatserve.service.errors import BadParameterError
from quatserve.service.settings import Settings
from quatserve.service.telemetry.metrics import Metrics, ModelState
from quatserve.service.web import openapi as documentation
from quatserve.service.web.catalogue import catalogue
from quatserve.service.web.docs_page import add_docs
from quatserve.service.web.front_page import add_page
from quatserve.service.web.inference import Inference
from quatserve.service.web.lifecycle import Lifecycle
from quatserve.service.web.middleware import ANSWERED_ERROR, Gateway, KeyRing
from quatserve.service.web.problems import (
    KINDS,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    Kind,
    response_for,
    response_of,
)
from quatserve.service.web.refusals import Refusals
from quatserve.service.web.v2 import protocol_v2


@dataclass(frozen=True)
class Application:
    """An ASGI application, with the parts the server has to reach."""

    gateway: Gateway
    lifecycle: Lifecycle
    registry: Registry
    refusals: Refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.gateway(scope, receive, send)


def installed_version() -> str:
    try:
        return version("quatserve")
    except PackageNotFoundError:  # run from a work tree
        return "0.0.0"


def create_app(
    settings: Settings,
    *,
    on_stuck: Callable[[], None] = lambda: None,
    load: Callable[[Path, Settings], Model] = load_model,
) -> Application:
    """Load every model, then build the application around them. Raises what `Registry.start` raises."""
    lifecycle, metrics = Lifecycle(), Metrics()

    def stuck() -> None:
        lifecycle.stuck = True
        on_stuck()

    registry = Registry(settings, observer=metrics.observer, on_stuck=stuck, load=load)
    registry.start()
    metrics.watch(lambda: map(_state_of, registry.loaded()))
    pool = ThreadPoolExecutor(usable_cpus(), thread_name_prefix="images", initializer=lower_priority)
    parser = ThreadPoolExecutor(1, thread_name_prefix="tensors", initializer=lower_priority)
    inference = Inference(settings, registry, metrics, pool, parser)
    gateway = Gateway(
        _api(inference, lifecycle, metrics, registry, [pool, parser], repository=bool(settings.keys())),
        hot={"/classify": inference.classify, "/segment": inference.segment},
        keys=KeyRing(settings.keys()),
        lifecycle=lifecycle,
        metrics=metrics,
        access_log=settings.access_log,
    )
    return Application(gateway, lifecycle, registry, Refusals(metrics))


def _state_of(loaded: LoadedModel) -> ModelState:
    """What the metrics show of a model."""
    model, description = loaded.model, loaded.model.description
    return ModelState(
        name=description.name,
        version=description.version,
        task=description.task,
        precision=model.precision,
        provider=model.provider,
        is_fallback=model.fallback_reason is not None,
        queued=loaded.batcher.queued,
        admitted=loaded.batcher.admitted,
    )


def _api(
    inference: Inference,
    lifecycle: Lifecycle,
    metrics: Metrics,
    registry: Registry,
    pools: list[ThreadPoolExecutor],
    *,
    repository: bool,
) -> FastAPI:
    """Everything FastAPI routes and documents."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        registry.start_batchers()
        yield
        await registry.close()
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(
        title="Quaternion networks",
        version=installed_version(),
        lifespan=lifespan,
        description=documentation.DESCRIPTION,
        docs_url=None,
        redoc_url=None,
    )
    documentation.add_inference_routes(app, inference)
    documentation.complete_schema(app, registry.names)
    add_page(app)
    add_docs(app)
    app.include_router(protocol_v2(inference, registry, lifecycle, installed_version(), repository))
    app.include_router(catalogue(registry, lifecycle, metrics))
    _add_error_handlers(app)
    return app


def _add_error_handlers(app: FastAPI) -> None:
    """The framework's errors in the shape of our own, and our own where FastAPI routes."""

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kinds = {404: NOT_FOUND, 405: METHOD_NOT_ALLOWED}
        kind = kinds.get(error.status_code, Kind(error.status_code, "http", str(error.detail)))
        return response_for(kind, str(error.detail), request.state.request_id, dict(error.headers or {}))

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return response_of(BadParameterError(str(error.errors()[0]["msg"])), request.state.request_id)

    async def own(request: Request, error: Exception) -> Response:
        setattr(request.state, ANSWERED_ERROR, error)
        return response_of(error, request.state.request_id, request.url.path)

    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, invalid)
    for kind in (*KINDS, Exception):
        app.add_exception_handler(kind, own)

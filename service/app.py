"""The application: `create_app(settings)` wires everything; nothing happens at import."""

from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fastapi import FastAPI

from quatserve.service.engine.cpus import lower_priority, usable_cpus
from quatserve.service.engine.load import Model, load_model
from quatserve.service.engine.loaded import LoadedModel
from quatserve.service.engine.registry import Registry
from quatserve.service.settings import Settings
from quatserve.service.telemetry.metrics import Metrics, ModelState
from quatserve.service.web.catalogue import catalogue
from quatserve.service.web.docs_page import add_docs
from quatserve.service.web.front_page import add_page
from quatserve.service.web.inference import Inference
from quatserve.service.web.lifecycle import Lifecycle
from quatserve.service.web.middleware import KeyRing, RequestMiddleware
from quatserve.service.web.openapi import DESCRIPTION, add_problem_schema
from quatserve.service.web.problems import add_problem_handlers
from quatserve.service.web.refusals import Refusals
from quatserve.service.web.routes import DirectDispatch, inference_router
from quatserve.service.web.server import Application
from quatserve.service.web.v2 import protocol_v2


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
    direct: bool = True,
) -> Application:
    """Load every model, then build the application around them. Raises what `Registry.start` raises.

    Without `direct`, requests to the inference routes pass through FastAPI like all others.
    """
    lifecycle, metrics = Lifecycle(), Metrics()

    def stuck() -> None:
        lifecycle.stuck = True
        on_stuck()

    registry = Registry(settings, observer=metrics.observer, on_stuck=stuck, load=load)
    registry.start()
    metrics.watch(lambda: map(_state_of, registry.loaded()))
    pool = ThreadPoolExecutor(usable_cpus(), thread_name_prefix="images", initializer=lower_priority)
    # One thread: while a JSON document is parsed, it takes 30 times its bytes in memory.
    parser = ThreadPoolExecutor(1, thread_name_prefix="tensors", initializer=lower_priority)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        registry.start_batchers()
        yield
        await registry.close()
        for executor in (pool, parser):
            executor.shutdown(wait=False, cancel_futures=True)

    api = FastAPI(
        title="Quaternion networks",
        version=installed_version(),
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    inference = Inference(settings, metrics, pool)
    inference_routes = inference_router(inference, registry, lifecycle)
    api.include_router(inference_routes)
    api.include_router(
        protocol_v2(inference, parser, registry, lifecycle, installed_version(), bool(settings.keys()))
    )
    api.include_router(catalogue(registry, lifecycle, metrics))
    add_page(api)
    add_docs(api)
    add_problem_schema(api)
    add_problem_handlers(api)
    asgi = RequestMiddleware(
        DirectDispatch(api, inference_routes) if direct else api,
        keys=KeyRing(settings.keys()),
        metrics=metrics,
        access_log=settings.access_log,
    )
    return Application(asgi, lifecycle, registry, Refusals(metrics))


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

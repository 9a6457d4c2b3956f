"""Every exception of the service is in the table of problem types."""

import ast
import asyncio
import importlib
import inspect
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

import quatserve.service
from quatserve.service.errors import QueueFullError, RunFailedError
from quatserve.service.telemetry.metrics import Metrics
from quatserve.service.web import problems
from quatserve.service.web.middleware import KeyRing, RequestMiddleware
from quatserve.service.web.problems import (
    ALL_PROBLEM_TYPES,
    PROBLEM_TYPES,
    ProblemType,
    add_problem_handlers,
    response_of,
)

# Raised before there is a client, or never sent to one.
NOT_FOR_CLIENTS = {
    "AddressError",
    "ArtifactError",
    "BadOutputError",  # becomes RunFailedError in the batcher
    "ClientGoneError",
    "DeviceFailedError",  # becomes RunFailedError in the batcher
    "DeviceUnavailableError",
    "ImageError",
    "NoGpuError",
    "NothingToServeError",
    "SettingsError",
}


SERVICE = Path(inspect.getfile(quatserve.service)).parent


def exception_classes() -> dict[str, type[Exception]]:
    found: dict[str, type[Exception]] = {}
    for path in SERVICE.rglob("*.py"):
        if path.stem.startswith("__"):
            continue
        name = ".".join(path.relative_to(SERVICE).with_suffix("").parts)
        module = importlib.import_module(f"quatserve.service.{name}")
        for node in ast.parse(path.read_text()).body:
            value = getattr(module, node.name, None) if isinstance(node, ast.ClassDef) else None
            if isinstance(value, type) and issubclass(value, Exception):
                found[value.__name__] = value
    return found


def test_every_exception_is_mapped_or_known_not_to_reach_a_client() -> None:
    classes = exception_classes()
    assert set(classes) - NOT_FOR_CLIENTS == {kind.__name__ for kind in PROBLEM_TYPES} - {"MemoryError"}
    assert set(classes) >= NOT_FOR_CLIENTS


def test_problem_types_are_unique_and_have_the_documented_statuses() -> None:
    declared = {kind for kind in vars(problems).values() if isinstance(kind, ProblemType)}
    assert declared <= set(ALL_PROBLEM_TYPES)
    assert len({kind.urn for kind in ALL_PROBLEM_TYPES}) == len(ALL_PROBLEM_TYPES)
    statuses = {kind.status for kind in PROBLEM_TYPES.values()}
    assert statuses == {400, 401, 404, 408, 409, 413, 415, 422, 500, 503, 504}


@pytest.mark.parametrize("error", [ValueError("a secret path"), RunFailedError("a secret path")])
def test_the_reason_of_an_internal_error_is_not_sent(error: Exception) -> None:
    response = response_of(error, "id-1")
    assert response.status_code == 500
    assert b"secret" not in response.body
    assert b"id-1" in response.body


def test_every_503_has_retry_after() -> None:
    for error_class, kind in PROBLEM_TYPES.items():
        if kind.status == 503:
            error = error_class(3.2) if error_class is QueueFullError else error_class("busy")
            assert int(response_of(error, "").headers["retry-after"]) >= 1
    assert response_of(QueueFullError(3.2), "").headers["retry-after"] == "4"


def test_fastapi_answers_its_own_errors_with_a_document_too() -> None:
    api = FastAPI()

    @api.get("/number")
    async def number(value: int) -> int:
        return value

    add_problem_handlers(api)
    application = RequestMiddleware(api, keys=KeyRing([]), metrics=Metrics(), access_log=False)

    async def problem(method: str, path: str) -> tuple[int, str, str]:
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            found = (await client.request(method, path)).json()
        return found["status"], found["type"].rpartition(":")[2], found["detail"]

    assert asyncio.run(problem("GET", "/number?value=x"))[:2] == (422, "bad-parameter")
    assert "query.value" in asyncio.run(problem("GET", "/number?value=x"))[2]
    assert asyncio.run(problem("POST", "/number"))[:2] == (405, "method-not-allowed")
    assert asyncio.run(problem("GET", "/nowhere"))[:2] == (404, "not-found")

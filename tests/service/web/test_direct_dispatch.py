"""Direct dispatch and FastAPI answer alike: the suite's own requests, sent to a service of each kind."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Depends

from quatserve.service.web.parameters import read_query
from quatserve.service.web.routes import DirectDispatch
from tests.service.artifacts import CLASSIFIER, SEGMENTER
from tests.service.harness import REPOSITORY, RunningService, encoded, noise, plain, wait_until
from tests.service.web.test_classify import ERRORS
from tests.service.web.test_limits import connect, head, read_answer

PROGRAM = (str(REPOSITORY / "benchmarks/speed/service_variant.py"), "fastapi")
DIFFERENT = {"x-request-id", "date", "server-timing", "content-length"}  # from one response to the next
PNG, FRAME = encoded(noise(32, 32)), encoded(noise(100, 50, seed=3))
RAW: dict[str, Any] = {"content": PNG, "headers": {"content-type": "image/png"}}
ANSWERED: list[tuple[str, dict[str, Any]]] = [
    ("/classify", RAW),
    ("/classify", {"files": {"file": PNG}}),
    ("/classify", {"files": [("files", PNG), ("files", plain((1, 2, 3))), ("file", FRAME)]}),
    *((f"/classify?{query}", RAW) for query in ("top_k=1", "top_k=1000", f"model={CLASSIFIER}&top_k=2")),
    ("/segment", {"files": {"file": FRAME}}),
    *(
        (f"/segment?{query}", {"files": {"file": FRAME}})
        for query in ("output=heatmap", "output=overlay&threshold=0.2", f"model={SEGMENTER}", "threshold=1")
    ),
]
REFUSED = [
    *((path, request) for path, request, _, _ in ERRORS),
    *((f"/classify?{query}", RAW) for query in ("top_k=", "top_k=1.5", "&".join(["a"] * 17), "a&a", "%e9=1")),
    ("/segment?threshold=", {"files": {"file": FRAME}}),
]


@pytest.fixture(scope="module")
def direct(models_dir: Path) -> Iterator[RunningService]:
    running = RunningService(models_dir)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def through_fastapi(models_dir: Path) -> Iterator[RunningService]:
    running = RunningService(models_dir, program=PROGRAM)
    yield running
    assert running.stop() == 0


def comparable(response: httpx.Response) -> tuple[int, dict[str, str], Any]:
    headers = {name: value for name, value in response.headers.items() if name not in DIFFERENT}
    if not response.headers["content-type"].endswith("json"):
        return response.status_code, headers, response.content
    body = response.json()
    assert body.pop("request_id", None) or body.pop("timings_ms").keys() == {"decode", "queue", "inference"}
    return response.status_code, headers, body


@pytest.mark.parametrize(("path", "request_"), ANSWERED + REFUSED)
def test_both_give_the_same_answer(
    direct: RunningService, through_fastapi: RunningService, path: str, request_: dict[str, Any]
) -> None:
    answers = [comparable(running.client.post(path, **request_)) for running in (direct, through_fastapi)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS"])
def test_both_refuse_other_methods_alike(
    direct: RunningService, through_fastapi: RunningService, method: str
) -> None:
    answers = [running.client.request(method, "/classify") for running in (direct, through_fastapi)]
    assert [answer.status_code for answer in answers] == [405, 405]
    assert [answer.headers["allow"] for answer in answers] == ["POST", "POST"]


def test_both_refuse_a_large_upload_unread(direct: RunningService, through_fastapi: RunningService) -> None:
    for running in (direct, through_fastapi):
        with connect(running) as connection:
            connection.sendall(head(10**9))  # and none of the body
            assert read_answer(connection)[0] == 413


def counters(running: RunningService) -> dict[str, str]:
    lines = running.client.get("/metrics").text.splitlines()
    matches = (re.fullmatch(r"(quatserve_(?:requests|rejections)_total\{.*\}) (.*)", line) for line in lines)
    return {match[1]: match[2] for match in matches if match and 'route="/metrics"' not in match[1]}


def test_both_count_alike(models_dir: Path) -> None:
    """Disconnects included: their status is 499 both ways."""
    both = RunningService(models_dir), RunningService(models_dir, program=PROGRAM)
    try:
        for running in both:
            for path, request_ in ANSWERED + REFUSED:
                running.client.post(path, **request_)
            with socket.create_connection(("127.0.0.1", running.port)) as leaving:
                leaving.sendall(head(100))
            wait_until(lambda r=running: r.metric("quatserve_requests_total", status="499") == 1)  # type: ignore[misc]
        assert counters(both[0]) == counters(both[1])
    finally:
        assert [running.stop() for running in both] == [0, 0]


def test_a_dependency_that_would_be_skipped_is_an_error() -> None:
    async def guard() -> None: ...

    async def endpoint() -> None: ...

    router = APIRouter(dependencies=[Depends(read_query), Depends(guard)])
    router.post("/route")(endpoint)
    with pytest.raises(AssertionError, match="skipped"):
        DirectDispatch(router, router)

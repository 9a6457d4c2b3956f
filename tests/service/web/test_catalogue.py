"""Models, health, metrics, documentation and logs, over a real socket."""

import json
import os
import re
import subprocess
from pathlib import Path

import httpx
import pytest
from PIL import Image

from quatserve.service.web.docs_page import examples
from quatserve.service.web.problems import ALL_PROBLEM_TYPES
from tests.service.artifacts import CLASSIFIER, LABELS, SEGMENTER
from tests.service.conftest import Start
from tests.service.harness import RunningService, plain, wait_until

RED = plain((200, 60, 40))


def test_models_are_listed_with_what_they_are_and_where_they_run(client: httpx.Client) -> None:
    body = client.get("/models").json()
    assert [m["name"] for m in body["models"]] == [CLASSIFIER, SEGMENTER]
    found = body["models"][0]
    assert (found["task"], found["precision"], found["provider"]) == (
        "classification",
        "int8",
        "CPUExecutionProvider",
    )
    assert found["description"]["labels"] == list(LABELS)
    assert found == client.get(f"/models/{CLASSIFIER}").json()
    assert body["refused"] == []


def test_an_unknown_model_is_not_found(client: httpx.Client) -> None:
    response = client.get("/models/nobody")
    assert response.status_code == 404
    assert response.json()["type"] == "urn:quatserve:problem:unknown-model"


def test_health_and_readiness(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"status": "alive"}
    response = client.get("/readyz")
    assert response.status_code == 200
    body = response.json()
    assert (body["ready"], body["draining"], body["stuck"], body["missing"]) == (True, False, False, [])
    assert {m["name"]: m["provider"] for m in body["models"]} == {
        CLASSIFIER: "CPUExecutionProvider",
        SEGMENTER: "CPUExecutionProvider",
    }


def test_auto_reports_that_it_uses_the_cpu(start: Start) -> None:
    running = start(device="auto")
    reasons = [m["fallback_reason"] for m in running.client.get("/readyz").json()["models"]]
    assert all(reasons)
    assert running.metric("quatserve_provider_fallback", model=CLASSIFIER) == 1
    assert '"fallback_reason":"' in running.log()


def test_device_cpu_reports_no_fallback(service: RunningService) -> None:
    assert service.metric("quatserve_provider_fallback", model=CLASSIFIER) == 0
    assert 'quatserve_provider_fallback{model="tiny-colours"} 0.0' in service.client.get("/metrics").text


def test_metrics_count_requests_rejections_images_and_stages(service: RunningService) -> None:
    def counts() -> list[float]:
        return [
            service.metric("quatserve_requests_total", route="/classify", status="200"),
            service.metric("quatserve_requests_total", route="/classify", status="400"),
            service.metric("quatserve_requests_total", route="other", status="404"),
            service.metric("quatserve_rejections_total", reason="too-many-images"),
            service.metric("quatserve_batch_images_sum", model=CLASSIFIER),
            service.metric("quatserve_stage_seconds_count", stage="decode"),
            service.metric("quatserve_stage_seconds_count", stage="inference"),
        ]

    before = counts()
    service.client.post("/classify", files=[("files", RED)] * 3)
    service.client.post("/classify", files={"file": b"junk"})
    service.client.post("/classify", files=[("files", RED)] * 17)
    service.client.get("/an/invented/path")
    assert [after - was for was, after in zip(before, counts(), strict=True)] == [1, 1, 1, 1, 3, 1, 1]


def test_metrics_show_queue_models_and_memory(service: RunningService) -> None:
    assert service.metric("quatserve_queue_images", model=CLASSIFIER) == 0
    facts = {
        "version": "1",
        "task": "classification",
        "precision": "int8",
        "provider": "CPUExecutionProvider",
    }
    assert service.metric("quatserve_model_info", model=CLASSIFIER, **facts) == 1
    assert service.metric("process_resident_memory_bytes") > 1e7


def test_a_request_id_is_created_or_kept_and_logged(service: RunningService) -> None:
    made = service.client.get("/healthz").headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{16}", made)
    kept = service.client.get("/healthz", headers={"x-request-id": "from-the-client.1"}).headers[
        "x-request-id"
    ]
    assert kept == "from-the-client.1"
    forged = service.client.get("/healthz", headers={"x-request-id": 'a" b'}).headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{16}", forged)
    wait_until(lambda: forged in service.log())
    lines = [json.loads(line) for line in service.log().splitlines()]  # every line is JSON
    ids = [line["request_id"] for line in lines if line["message"] == "request"]
    assert {made, kept, forged} <= set(ids)


def test_logs_hold_neither_image_content_nor_query_values(service: RunningService) -> None:
    private = {
        "file": ("private-name.png", b"private-content")
    }  # not an image: the error message might quote it
    answers = [
        service.client.post(f"/classify{query}", files=private) for query in ("?model=secret-name", "")
    ]
    assert [answer.status_code for answer in answers] == [404, 400]
    ids = {answer.headers["x-request-id"] for answer in answers}
    wait_until(lambda: all(id_ in service.log() for id_ in ids))  # logged after the response
    assert not re.search("secret-name|private-name|private-content", service.log())


def test_text_logs_are_readable(start: Start) -> None:
    running = start(log_format="text")
    running.client.get("/healthz")
    line = re.compile(r"INFO +request request_id=\w+ method=GET path=/healthz status=200")
    wait_until(lambda: line.search(running.log()) is not None)
    running.client.get("/a%0A12:00:00 INFO forged%1B[2J")
    wait_until(lambda: r"path='/a\n12:00:00 INFO forged\x1b[2J' status=404" in running.log())


@pytest.mark.parametrize("title", examples("x"))
def test_every_example_of_the_documentation_runs_as_shown(
    service: RunningService,
    title: str,
    tmp_path_factory: pytest.TempPathFactory,
    newcomer: dict[str, str],
    stand_ins: Path,
) -> None:
    command = examples(service.url)[title]
    page = service.client.get("/docs").text
    assert command.replace("'", "&#x27;").replace("&output", "&amp;output") in page
    ours = os.pathsep.join([str(stand_ins), newcomer["PATH"]])
    for environment in (newcomer, newcomer | {"PATH": ours}):
        folder = tmp_path_factory.mktemp("example")
        done = subprocess.run(
            ["sh", "-c", command], cwd=folder, env=environment, capture_output=True, timeout=60, check=True
        )
        if (folder / "mask.png").exists():
            with Image.open(folder / "mask.png") as mask:
                assert mask.size == (32, 32)
        else:
            assert json.loads(done.stdout)


def test_the_documentation_loads_nothing_from_other_hosts(client: httpx.Client) -> None:
    response = client.get("/docs")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert not re.search(r"(src|href)=['\"]?(https?:)?//", response.text)


def test_the_documentation_lists_every_error(client: httpx.Client) -> None:
    page = client.get("/docs").text
    assert [kind.slug for kind in ALL_PROBLEM_TYPES if kind.urn not in page] == []


def test_the_schema_names_every_route_and_error(client: httpx.Client) -> None:
    schema = client.get("/openapi.json").json()
    own = {path for path in schema["paths"] if not path.startswith("/v2")}
    assert own == {"/classify", "/segment", "/models", "/models/{name}", "/healthz", "/readyz", "/metrics"}
    for path in ("/classify", "/segment"):
        operation = schema["paths"][path]["post"]
        errors = {status for status in operation["responses"] if status != "200"}
        assert errors == {"400", "401", "404", "408", "413", "415", "422", "500", "503", "504"}
        assert "multipart/form-data" in operation["requestBody"]["content"]
    assert "Problem" in schema["components"]["schemas"]


def test_405_names_the_allowed_method(client: httpx.Client) -> None:
    response = client.get("/classify")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")

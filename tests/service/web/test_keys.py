"""API keys protect everything but health, the page and the documentation."""

import httpx
import pytest

from tests.service.conftest import Start
from tests.service.harness import RunningService, plain, wait_until
from tests.service.web.test_limits import connect, head, read_answer

OPEN = ["/healthz", "/readyz", "/docs", "/openapi.json"]
CLOSED = ["/models", "/metrics", "/nowhere"]


@pytest.fixture(scope="module")
def guarded(models_dir: object) -> RunningService:
    return RunningService(models_dir, api_keys="first-key,second-key")  # type: ignore[arg-type]


@pytest.fixture(autouse=True, scope="module")
def _stopped(guarded: RunningService) -> object:
    yield
    assert guarded.stop() == 0


@pytest.mark.parametrize("path", OPEN)
def test_health_and_documentation_are_open(guarded: RunningService, path: str) -> None:
    assert guarded.client.get(path).status_code == 200


@pytest.mark.parametrize("path", CLOSED)
@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer nope"}, {"x-api-key": ""}, {"authorization": "Basic first-key"}]
)
def test_without_a_key_everything_else_is_refused(
    guarded: RunningService, path: str, headers: dict[str, str]
) -> None:
    response = guarded.client.get(path, headers=headers)
    assert response.status_code == 401
    assert response.json()["type"] == "urn:quatserve:problem:unauthorized"
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first-key"},
        {"authorization": "bearer second-key"},
        {"x-api-key": "second-key"},
    ],
)
def test_each_key_is_accepted(guarded: RunningService, headers: dict[str, str]) -> None:
    assert guarded.client.get("/models", headers=headers).status_code == 200
    files = {"file": plain((1, 2, 3))}
    assert guarded.client.post("/classify", files=files, headers=headers).status_code == 200


def test_an_upload_without_a_key_is_not_read(guarded: RunningService) -> None:
    with connect(guarded) as connection:
        connection.sendall(head(1_000_000))  # and none of the body
        assert read_answer(connection)[0] == 401


def test_keys_are_not_logged(guarded: RunningService) -> None:
    answer = guarded.client.get("/models", headers={"x-api-key": "wrong-but-private"})
    wait_until(lambda: answer.headers["x-request-id"] in guarded.log())  # logged after the response
    assert "first-key" not in guarded.log()
    assert "wrong-but-private" not in guarded.log()


def test_keys_are_read_from_a_file(start: Start, tmp_path: object) -> None:
    secret = tmp_path / "keys"  # type: ignore[operator]
    secret.write_text("from-the-file\n")
    running = start(api_keys_file=secret)
    assert httpx.get(f"{running.url}/models").status_code == 401
    assert httpx.get(f"{running.url}/models", headers={"x-api-key": "from-the-file"}).status_code == 200

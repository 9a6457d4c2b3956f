"""schemathesis checks the running service against `/openapi.json`."""

from pathlib import Path

from tests.service.fuzzing import fuzz
from tests.service.harness import RunningService


def test_the_service_keeps_to_its_schema(service: RunningService, tmp_path: Path) -> None:
    ended = fuzz(service.url, tmp_path, "--max-examples", "10", "--seed", "1")
    assert ended.returncode == 0, ended.stdout + ended.stderr

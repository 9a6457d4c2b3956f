"""A copy of this project in a scratch folder, `docker compose` in it, and its service over HTTP."""

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.packaging.running_service import free_port

ROOT = Path(__file__).parents[2]
COPIED = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "docker-compose.yml", ".dockerignore")
FOLDERS = ("docker", "quatserve", "training", "export", "service", "models")
SERVICE = "cpu"
SAMPLES = ROOT / "service/samples"

# Ports that are free here, a health check that need not be waited for, the private engine's network, and an
# image for the service that the engine refuses.
OVERRIDES = """
services:
  service:
    image: quatserve:cpu
  cpu:
    build: {network: "${BUILD_NETWORK:-default}"}
    healthcheck: {interval: 1s}
  prometheus:
    ports: !override ["127.0.0.1:${PROMETHEUS_PORT}:9090"]
"""


class EngineError(Exception):
    """`docker` failed; the message has what it printed."""


class Project:
    """The compose project, under a name of its own beside whatever else the engine runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.prometheus_port = folder, free_port(), free_port()
        self.variables: dict[str, str] = {}  # such as API_KEYS_FILE
        ignore = shutil.ignore_patterns("__pycache__")
        for name in FOLDERS:
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignore)
        for name in COPIED:
            shutil.copy(ROOT / name, folder)
        (folder / "overrides.yml").write_text(OVERRIDES)

    def docker(self, *arguments: object) -> str:
        """What `docker` prints; with its errors, if it fails."""
        environment = os.environ | {
            "COMPOSE_PROJECT_NAME": f"quatserve-check-{os.getpid()}",
            "COMPOSE_FILE": "docker-compose.yml:overrides.yml",
            "PUBLISH": f"127.0.0.1:{self.port}",
            "PROMETHEUS_PORT": str(self.prometheus_port),
        }
        run = subprocess.run(
            ["docker", *map(str, arguments)],
            cwd=self.folder,
            env=environment | self.variables,
            capture_output=True,
            text=True,
        )
        if run.returncode:
            raise EngineError(f"docker {' '.join(map(str, arguments))}\n{run.stdout}\n{run.stderr}")
        return run.stdout + run.stderr if "logs" in arguments else run.stdout

    def compose(self, *arguments: object) -> str:
        return self.docker("compose", *arguments)

    @contextlib.contextmanager
    def up(self, *services: str, **variables: str) -> Iterator[None]:
        """These services, healthy; and removed with their volumes at the end."""
        self.variables = variables
        try:
            self.compose("up", "--wait", *(services or (SERVICE,)))
            yield
        except BaseException:
            print(self.compose("logs", "--tail", 50), flush=True)
            raise
        finally:
            self.down()
            self.variables = {}

    @contextlib.contextmanager
    def settings(self, **values: str) -> Iterator[None]:
        """quatserve.env with these values."""
        file = self.folder / "quatserve.env"
        file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        try:
            yield
        finally:
            file.unlink()

    def down(self) -> None:
        self.compose("--profile", "*", "down", "--volumes", "--timeout", 5)

    def inspect(self, field: str) -> Any:
        """A field of the service's container."""
        return json.loads(self.docker("inspect", "--format", f"{{{{json {field}}}}}", self._container()))

    def log(self) -> str:
        """All that the service's container has printed."""
        return self.docker("logs", self._container())

    def _container(self) -> str:
        return self.compose("ps", "--all", "--quiet", SERVICE).strip()

    def image_size(self, image: str) -> str:
        return self.docker("image", "ls", "--format", "{{.Size}}", image).strip()

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """One request to the service on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=180)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def is_ready(self, **headers: str) -> bool:
        try:
            return self.request("GET", "/readyz", headers=headers)[0] == http.HTTPStatus.OK
        except OSError:
            return False


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60) -> float:
    """The seconds until it holds."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < seconds, f"{what}: not within {seconds:g} s"
        time.sleep(0.1)
    return time.monotonic() - begun

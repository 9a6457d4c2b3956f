"""Servers under test, each in processes of its own that run only while they are measured."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from quatserve.service.artifact import Precision
from quatserve.service.engine.cpus import usable_cpus
from quatserve.service.engine.session import SPIN_US

REPOSITORY = Path(__file__).parents[2]
START_LIMIT_S = 60.0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A process group that is stopped (SIGSTOP) but for the time of its `with server.awake()`."""

    def __init__(self, command: Sequence[str], port: int, health: str) -> None:
        self.port, self.url, self._command = port, f"http://127.0.0.1:{port}", command
        self._process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._wait(self.url + health)
        except SystemExit:
            self.__exit__()
            raise
        self._signal(signal.SIGSTOP)

    def _wait(self, url: str) -> None:
        end = time.monotonic() + START_LIMIT_S
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1):
                return
            time.sleep(0.1)
        raise SystemExit(f"{' '.join(self._command)} did not start")

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    @contextlib.contextmanager
    def awake(self) -> Iterator[str]:
        self._signal(signal.SIGCONT)
        try:
            yield self.url
        finally:
            self._signal(signal.SIGSTOP)

    @property
    def group(self) -> int:
        return self._process.pid

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """Processor time that the process has used so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)


@contextlib.contextmanager
def our_service(
    artifact: Path, precision: Precision, program: Sequence[str] = ("-m", "quatserve", "serve")
) -> Iterator[Server]:
    """The service with one model and its defaults, without the log of requests: LitServe writes none."""
    port = _free_port()
    with tempfile.TemporaryDirectory() as models:
        (Path(models) / artifact.parent.name).mkdir()
        (Path(models) / artifact.parent.name / artifact.name).symlink_to(artifact.resolve())
        flags = ["--models-dir", models, "--port", str(port), "--precision", precision, "--access-log", "no"]
        with Server([sys.executable, *program, *flags], port, "/readyz") as server:
            yield server


def litserve(python: str, model: Path, batch: int) -> Server:
    port, program = _free_port(), Path(__file__).with_name("litserve_classifier.py")
    numbers = (port, usable_cpus(), batch, SPIN_US)
    return Server([python, str(program), str(model), *map(str, numbers)], port, "/health")


def litserve_version(python: str) -> str:
    program = "import litserve; print(litserve.__version__)"
    return subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()

"""A service process of our own on a free port: started, awaited, and stopped as a supervisor would."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

READY_WITHIN_S = 120
STOPPED_WITHIN_S = 30


@dataclass(frozen=True)
class Running:
    port: int
    readiness: dict[str, Any]  # what /readyz said


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def running(command: Sequence[str], *, cwd: Path) -> Iterator[Running]:
    """`command` with a port appended, once it is ready. It must end with exit code 0 when told to stop."""
    port = free_port()
    process = subprocess.Popen([*command, "--port", str(port)], cwd=cwd)
    try:
        yield Running(port, _readiness(process, port))
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOPPED_WITHIN_S) == 0
    finally:
        process.kill()
        process.wait()


def _readiness(process: "subprocess.Popen[bytes]", port: int) -> dict[str, Any]:
    give_up = time.monotonic() + READY_WITHIN_S
    while process.poll() is None and time.monotonic() < give_up:
        try:
            with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the service is not ready (exit code {process.poll()})")

"""Starts a service on a free port, waits until it is ready, and stops it like a supervisor."""

import json
import os
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
    readiness: dict[str, Any]  # the document of /readyz


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def running(
    command: Sequence[str],
    *,
    cwd: Path,
    stop: signal.Signals = signal.SIGTERM,
    exit_code: int = 0,
    **settings: str,
) -> Iterator[Running]:
    """Run `command`, yield when it is ready, stop it, and check the exit code."""
    port = free_port()
    environment = os.environ | {"QUATSERVE_PORT": str(port)} | settings
    # In a process group of its own, as a terminal interrupts the whole group.
    process = subprocess.Popen(command, cwd=cwd, env=environment, start_new_session=True)
    try:
        yield Running(port, _readiness(process, port))
        os.killpg(process.pid, stop)
        assert process.wait(STOPPED_WITHIN_S) == exit_code
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
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

"""A real service process on an ephemeral port, and images to send it."""

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from PIL import Image

REPOSITORY = Path(__file__).parents[2]
START_LIMIT_S = 30.0
LISTENING = re.compile(r"running on http://127\.0\.0\.1:(\d+)")


def wait_until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Poll a condition; fail if it does not become true in time."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


class RunningService:
    """`quatserve serve`, or another program that serves, with its log in a file."""

    def __init__(
        self, models_dir: Path, program: tuple[str, ...] = ("-m", "quatserve", "serve"), **settings: object
    ) -> None:
        flags = {"port": 0, "models_dir": models_dir, **settings}
        arguments = [
            text for key, value in flags.items() for text in (f"--{key.replace('_', '-')}", str(value))
        ]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("QUATSERVE_")}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by stop()
        self.process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            cwd=REPOSITORY,
            env=clean | {"PYTHONPATH": str(REPOSITORY)},
            stdout=self._log,
            stderr=self._log,
        )
        try:
            self.port = self._wait_for_port()
        except AssertionError:
            self.process.kill()
            self.process.wait()
            self._log.close()
            raise
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=20)

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def _wait_for_port(self) -> int:
        end = time.monotonic() + START_LIMIT_S
        while not (found := LISTENING.search(self.log())):
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.02)
        return int(found[1])

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def metric(self, name: str, **labels: str) -> float:
        """The value of a metric, 0 where it is not there yet."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        for line in self.client.get("/metrics").text.splitlines():
            head, _, value = line.rpartition(" ")
            if re.split(r"[{ ]", head)[0] == name and wanted <= set(re.findall(r'\w+="[^"]*"', head)):
                return float(value)
        return 0.0

    def stop(self) -> int:
        """End the process and return its exit code."""
        self.client.close()
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            self._log.close()


def encoded(picture: Image.Image | NDArray[np.uint8], kind: str = "PNG", **options: Any) -> bytes:
    """A picture as a file."""
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def plain(colour: tuple[int, int, int], size: tuple[int, int] = (32, 32)) -> bytes:
    return encoded(Image.new("RGB", size, colour))


def noise(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


class Background:
    """A call on its own thread; `result()` waits for it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._value: Any = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._value = call()
        except httpx.HTTPError as error:
            self._value = error

    def result(self) -> Any:
        self._thread.join(30)
        assert not self._thread.is_alive(), "the call did not come back"
        return self._value

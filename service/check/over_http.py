"""The service as a process of its own: how long until it is ready, and its requests per second."""

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from quatserve.service.artifact import Task
from quatserve.service.check.bench import Bench
from quatserve.service.check.report import Row, judged, measured
from quatserve.service.settings import Device

READY_WITHIN_S = 120.0  # the `start_period` of docker-compose.yml
LOAD_S = 5.0
CONNECTIONS = 32
STOP_S = 30
SAMPLES = Path(__file__).parents[1] / "samples"
REQUESTS = {
    Task.CLASSIFICATION: ("/classify", "cat.png", "image/png"),
    Task.SEGMENTATION: ("/segment", "road.jpg", "image/jpeg"),
}
DIRECT = build_opener(ProxyHandler({}))


def check_service(bench: Bench) -> Iterator[Row]:
    """Cold start on the GPU, and requests per second on the GPU and on the CPU."""
    tasks = {artifact.description.task: artifact.name for artifact in bench.artifacts()}
    rates: dict[Device, dict[Task, float]] = {}
    for device in (Device.CUDA, Device.CPU):
        with running(bench, device) as (port, ready_s):
            if device is Device.CUDA:
                yield judged(
                    "cold start",
                    ready_s <= READY_WITHIN_S,
                    f"ready after {ready_s:.1f} s; at most {READY_WITHIN_S:g}",
                    seconds=ready_s,
                )
            rates[device] = {task: requests_per_second(port, task, name) for task, name in tasks.items()}
    for task in tasks:
        gpu, cpu = rates[Device.CUDA][task], rates[Device.CPU][task]
        yield measured(
            f"requests per second, {REQUESTS[task][0]}",
            f"{gpu:,.0f} on the GPU, {cpu:,.0f} on the CPU ({gpu / cpu:.2f} times)",
            gpu=gpu,
            cpu=cpu,
        )


@contextmanager
def running(bench: Bench, device: Device) -> Iterator[tuple[int, float]]:
    """A service on a free port, and the seconds until it was ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "quatserve", "serve", "--port", str(port), "--access-log", "false"]
    flags = ["--device", device.value, "--models-dir", str(bench.settings.models_dir)]
    own = {name: value for name, value in os.environ.items() if not name.startswith("QUATSERVE_")}
    begun = time.monotonic()
    process = subprocess.Popen([*command, *flags], env=own, stdout=subprocess.DEVNULL)
    try:
        while not _is_ready(port):
            if process.poll() is not None or time.monotonic() - begun > 2 * READY_WITHIN_S:
                raise RuntimeError(f"the service on {device} is not ready (exit code {process.poll()})")
            time.sleep(0.05)
        yield port, time.monotonic() - begun
    finally:
        process.terminate()
        process.wait(STOP_S)


def _is_ready(port: int) -> bool:
    try:
        with DIRECT.open(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(json.load(answer)["ready"])
    except OSError:
        return False


def requests_per_second(port: int, task: Task, model: str, seconds: float = LOAD_S) -> float:
    """Requests that were answered with 200, by many connections at once."""
    path, sample, kind = REQUESTS[task]
    body, done = (SAMPLES / sample).read_bytes(), [0] * CONNECTIONS
    end = time.monotonic() + seconds

    def work(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        while time.monotonic() < end:
            connection.request("POST", f"{path}?model={model}", body, {"Content-Type": kind})
            answer = connection.getresponse()
            answer.read()
            done[number] += answer.status == http.HTTPStatus.OK
        connection.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / seconds

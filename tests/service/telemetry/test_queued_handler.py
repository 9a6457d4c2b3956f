"""A log that nobody reads costs lines, and nothing else."""

import fcntl
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from quatserve.service.telemetry.metrics import Metrics
from quatserve.service.telemetry.queued_handler import CLOSING_LIMIT_S, QueuedHandler
from tests.service.harness import LISTENING, REPOSITORY, wait_until

PIPE_BYTES = 4096  # the smallest pipe
LINE_BYTES = 100


@pytest.fixture
def pipe() -> Iterator[tuple[IO[bytes], int]]:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "wb"):
        yield reader, writing


def record(text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": text})


def test_lines_arrive_in_order_and_are_complete_after_closing(pipe: tuple[IO[bytes], int]) -> None:
    reader, writing = pipe
    handler = QueuedHandler(writing)
    for index in range(100):
        handler.handle(record(str(index)))
    handler.close()
    assert reader.read(PIPE_BYTES).decode().split() == [str(index) for index in range(100)]
    assert handler.dropped == 0


@pytest.mark.timeout(20)
def test_what_finds_no_room_is_dropped_and_counted(pipe: tuple[IO[bytes], int]) -> None:
    reader, writing = pipe
    os.write(writing, b"." * PIPE_BYTES)  # full
    limit = 20 * LINE_BYTES
    handler = QueuedHandler(writing, limit)
    metrics = Metrics()
    logging.root.addHandler(handler)
    try:
        for _ in range(200):
            handler.handle(record("x" * (LINE_BYTES - 1)))
        assert handler.dropped == 180
        families = text_string_to_metric_families(metrics.render().decode())
        (family,) = [f for f in families if f.name == "quatserve_dropped_log_lines"]
        assert family.samples[0].value == handler.dropped
        begun = time.monotonic()
        handler.close()
        assert time.monotonic() - begun < 5 * CLOSING_LIMIT_S
    finally:
        logging.root.removeHandler(handler)
        reader.read(PIPE_BYTES)
        handler._thread.join()  # before the pipe is closed


def test_a_log_is_written_on_after_its_reader_paused(pipe: tuple[IO[bytes], int]) -> None:
    reader, writing = pipe
    handler = QueuedHandler(writing, PIPE_BYTES)
    for _ in range(200):
        handler.handle(record("x" * LINE_BYTES))
    assert handler.dropped
    wait_until(lambda: bool(reader.read(PIPE_BYTES)) and not handler._pending_bytes)
    handler.handle(record("again"))
    handler.close()
    assert reader.read(PIPE_BYTES).endswith(b"again\n")


def test_a_record_that_cannot_be_formatted_is_dropped(
    pipe: tuple[IO[bytes], int], capfd: pytest.CaptureFixture[str]
) -> None:
    handler = QueuedHandler(pipe[1])
    handler.handle(logging.makeLogRecord({"msg": "%d", "args": ("no number",)}))
    handler.close()
    assert handler.dropped == 1
    assert capfd.readouterr().err == ""


@pytest.mark.timeout(60)
def test_a_log_that_nobody_reads_freezes_nothing(models_dir: Path) -> None:
    """Requests, probes and SIGTERM; the access log has a line for each request."""
    process = subprocess.Popen(
        [sys.executable, "-m", "quatserve", "serve", "--port", "0", "--models-dir", str(models_dir)],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr
        fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        port = next(found[1] for line in process.stderr if (found := re.search(LISTENING, line.decode())))
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            for _ in range(20):  # a line has more than a kilobyte
                assert client.get(f"/{'x' * 1000}").status_code == 404
            assert client.get("/healthz").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()

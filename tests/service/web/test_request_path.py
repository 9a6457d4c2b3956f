"""docs/architecture.md names every file of ours that a `/classify` request runs through."""

import asyncio
import io
import logging
import re
import sys
import threading
from pathlib import Path
from types import FrameType

import httpx
import uvloop
from uvicorn.server import ServerState

from quatserve.service.app import create_app
from quatserve.service.settings import Settings
from quatserve.service.telemetry.logs import JsonFormatter
from quatserve.service.web.middleware import access
from quatserve.service.web.protocol import bounded_protocol
from quatserve.service.web.server import configuration
from tests.service.artifacts import write_both
from tests.service.harness import REPOSITORY, encoded, noise

DOCUMENT = REPOSITORY / "docs" / "architecture.md"
SERVICE = REPOSITORY / "service"
DEFINITIONS = {"service/errors.py", "service/artifact.py"}  # listed, but without a function to be called
PICTURES = [encoded(noise(32, 32)), encoded(noise(100, 100))]  # decoded on the event loop, and on a thread


class Trace:
    """Records the file of every Python function that is called, on any thread, while `recording` is set."""

    def __init__(self) -> None:
        self.recording = False
        self._files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if self.recording and event == "call":
            self._files.add(frame.f_code.co_filename)

    def files(self) -> set[str]:
        """Those of the service, relative to the repository."""
        paths = {Path(name).resolve() for name in self._files if not name.startswith("<")}
        return {str(path.relative_to(REPOSITORY)) for path in paths if path.is_relative_to(SERVICE)}


async def classify(models_dir: Path, trace: Trace) -> None:
    """Send requests over a socket to the application of `quatserve serve`: good ones and a bad one."""
    settings = Settings(models_dir=models_dir)
    app, state = create_app(settings), ServerState()
    config, protocol = configuration(app, settings), bounded_protocol(settings, app.refusals)
    make = lambda: protocol(config=config, server_state=state, app_state={})  # noqa: E731
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/classify?top_k=2"
    async with httpx.AsyncClient(headers={"content-type": "image/png"}) as client:
        for trace.recording in (False, True):  # the first round starts threads
            answers = [await client.post(url, content=data) for data in (*PICTURES, b"no image")]
            assert [answer.status_code for answer in answers] == [200, 200, 400]
        trace.recording = False
    server.close()
    await app.registry.close()


def traced(models_dir: Path) -> set[str]:
    trace, handler, level = Trace(), logging.StreamHandler(io.StringIO()), access.level
    handler.setFormatter(JsonFormatter())
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    threading.setprofile(trace)  # for threads that start from now on
    sys.setprofile(trace)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(classify(models_dir, trace))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        access.removeHandler(handler)
        access.setLevel(level)
    return trace.files()


def listed(heading: str) -> list[str]:
    """The files that a section of docs/architecture.md lists, in its order."""
    section = DOCUMENT.read_text().partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    return re.findall(r"^(?:\d\.|-) `(service/[\w/]+\.py)`", section, re.MULTILINE)


def test_a_classify_request_runs_through_the_files_that_the_document_names(tmp_path: Path) -> None:
    eight, cross_cutting = listed("Eight files to read"), listed("Cross-cutting files")
    assert len(eight) == 8
    assert traced(write_both(tmp_path)) == {*eight, *cross_cutting} - DEFINITIONS

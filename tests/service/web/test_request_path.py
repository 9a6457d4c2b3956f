"""docs/architecture.md names every file of ours that a `/classify` request passes."""

import asyncio
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
from quatserve.service.web.server import configuration
from tests.service.artifacts import write_both
from tests.service.harness import REPOSITORY, encoded, noise

DOCUMENT = REPOSITORY / "docs" / "architecture.md"
SERVICE = REPOSITORY / "service"
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
    """Send requests over a socket to the application, as `quatserve serve` builds it."""
    settings = Settings(models_dir=models_dir)
    app = create_app(settings)
    config, state = configuration(app, settings), ServerState()
    config.load()
    make = lambda: config.http_protocol_class(config=config, server_state=state, app_state={})  # noqa: E731
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    url = "http://127.0.0.1:{}/classify?top_k=2".format(server.sockets[0].getsockname()[1])
    trace.recording = True
    async with httpx.AsyncClient() as client:
        for picture in PICTURES:
            response = await client.post(url, content=picture, headers={"content-type": "image/png"})
            assert response.status_code == 200, response.text
    trace.recording = False
    server.close()
    await app.registry.close()


def traced(models_dir: Path) -> set[str]:
    trace = Trace()
    threading.setprofile(trace)  # for threads that start from now on
    sys.setprofile(trace)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(classify(models_dir, trace))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # typeshed forbids what the documentation allows
    return trace.files()


def listed(heading: str) -> list[str]:
    """The files that begin the lines of a list in docs/architecture.md."""
    section = DOCUMENT.read_text().partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    return re.findall(r"^(?:\d+\.|-) `(service/[\w/]+\.py)`", section, re.MULTILINE)


def test_a_request_passes_the_eight_files_and_the_cross_cutting_ones(tmp_path: Path) -> None:
    eight, others = listed("The eight files"), listed("Cross-cutting files")
    assert len(eight) == 8
    found = traced(write_both(tmp_path))
    assert found - set(others) == set(eight)
    assert set(others) <= found

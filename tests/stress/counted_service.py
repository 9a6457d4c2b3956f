"""The service with one more route: `/census` counts the tasks and futures that are alive in the process."""

import asyncio
import dataclasses
import gc
import json
import sys
from pathlib import Path

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service import logs
from service.app import create_app
from service.server import exit_stuck, serve
from service.settings import parse
from tests.service.harness import RunningService

PROGRAM = ("-m", "tests.stress.counted_service")
CENSUS = "/census"


@dataclasses.dataclass(frozen=True)
class Census:
    """In front of the application."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != CENSUS:
            await self.app(scope, receive, send)
            return
        gc.collect()
        pending = [f for f in gc.get_objects() if isinstance(f, asyncio.Future) and not f.done()]
        counts = {"tasks": len(asyncio.all_tasks()), "futures": len(pending)}
        await Response(json.dumps(counts))(scope, receive, send)


@dataclasses.dataclass(frozen=True)
class Alive:
    """What a process holds, the request that asks included."""

    tasks: int
    futures: int
    threads: int
    files: int

    def within(self, other: "Alive") -> bool:
        return all(getattr(self, f.name) <= getattr(other, f.name) for f in dataclasses.fields(self))

    def __str__(self) -> str:
        return f"{self.tasks} tasks, {self.futures} futures, {self.threads} threads, {self.files} files"


def census(running: RunningService) -> Alive:
    counts: dict[str, int] = running.client.get(CENSUS).json()
    process = Path(f"/proc/{running.process.pid}")
    threads, files = (len(list((process / kind).iterdir())) for kind in ("task", "fd"))
    return Alive(**counts, threads=threads, files=files)


if __name__ == "__main__":
    chosen, _ = parse(sys.argv[1:])
    logs.configure(chosen.log_level, chosen.log_format)
    app = create_app(chosen, on_stuck=exit_stuck)
    serve(dataclasses.replace(app, gateway=Census(app.gateway)), chosen)  # type: ignore[arg-type]

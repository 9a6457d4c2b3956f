"""The service with one more route: `/census` counts what is alive in the process."""

import asyncio
import dataclasses
import gc
import json
import os
import sys
import threading
from pathlib import Path

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from quatserve.service.app import create_app
from quatserve.service.commands import parse
from quatserve.service.engine.cpus import usable_cpus
from quatserve.service.telemetry import logs
from quatserve.service.web.server import exit_stuck, serve
from tests.service.harness import RunningService

PROGRAM = ("-m", "tests.stress.counted_service")
CENSUS = "/census"
POOLS = ("images_", "asyncio_")  # what the threads of the two pools are called
POOLED = usable_cpus() + min(32, (os.cpu_count() or 1) + 4)  # as many as they may have; asyncio's own number


@dataclasses.dataclass(frozen=True)
class Census:
    """In front of the application."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != CENSUS:
            await self.app(scope, receive, send)
            return
        await Response(json.dumps(dataclasses.asdict(count_alive())))(scope, receive, send)


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


def count_alive() -> Alive:
    """In this process. A future that a task awaits is part of that task: the server's own come and go.

    A pool starts a thread when it first needs it: those are no growth, up to its size.
    """
    gc.collect()
    tasks = asyncio.all_tasks()
    awaited = {id(task._fut_waiter) for task in tasks}  # type: ignore[attr-defined]  # asyncio has no public name
    # by type: some objects that other tests have loaded warn when they are asked for their class
    pending = [f for f in gc.get_objects() if issubclass(type(f), asyncio.Future) and not f.done()]
    pooled = sum(thread.name.startswith(POOLS) for thread in threading.enumerate())
    return Alive(
        tasks=len(tasks),
        futures=sum(id(f) not in awaited for f in pending if f not in tasks),
        threads=len(list(Path("/proc/self/task").iterdir())) - min(pooled, POOLED),
        files=len(list(Path("/proc/self/fd").iterdir())),
    )


def census(running: RunningService) -> Alive:
    return Alive(**running.client.get(CENSUS).json())


if __name__ == "__main__":
    chosen = parse(sys.argv[1:])
    logs.configure(chosen.log_level, chosen.log_format)
    app = create_app(chosen, on_stuck=exit_stuck)
    serve(dataclasses.replace(app, asgi=Census(app.asgi)), chosen)

"""The process: signals, the drain, and the exit of a process that is stuck."""

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from quatserve.service.engine.registry import Registry
from quatserve.service.settings import Settings
from quatserve.service.web.lifecycle import Lifecycle
from quatserve.service.web.open_files import allow_open_files
from quatserve.service.web.protocol import BoundedServer, bounded_protocol
from quatserve.service.web.refusals import Refusals

EXIT_STUCK = 70
STUCK_NOTICE_S = 2.0  # before the exit, for /readyz to be polled and the other responses to be sent
THREADS_END_S = 0.5  # idle threads end within this, with much to spare
SWITCH_INTERVAL_S = 0.001  # between runs, the session's thread needs the interpreter briefly and at once
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Application:
    """The ASGI application, and the parts of it that the process needs directly."""

    asgi: ASGIApp
    lifecycle: Lifecycle
    registry: Registry
    refusals: Refusals


class Server(BoundedServer):
    """Drains on SIGTERM and SIGINT, rescans the models directory on SIGHUP."""

    def __init__(self, config: uvicorn.Config, app: Application, settings: Settings) -> None:
        super().__init__(config)
        self._lifecycle, self._registry, self._settings = app.lifecycle, app.registry, settings
        self._tasks: set[asyncio.Task[None]] = set()
        self.handlers = {
            signal.SIGTERM: lambda: self._start(self._drain()),
            signal.SIGINT: lambda: self._start(self._drain()),
            signal.SIGHUP: lambda: self._start(self._rescan()),
        }

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _rescan(self) -> None:
        if not self._lifecycle.draining:
            await self._registry.rescan()

    async def _drain(self) -> None:
        """Refuse new work, finish what was accepted, then stop. A second signal stops at once."""
        if self._lifecycle.draining:
            self.abort_unread()
            self.should_exit = self.force_exit = True
            return
        log.info("draining", extra={"accepted": self._lifecycle.accepted})
        self._lifecycle.draining = True
        try:
            async with asyncio.timeout(self._settings.drain_timeout_s):
                await asyncio.sleep(self._settings.drain_notice_s)
                await self._lifecycle.finished()
                await self.responses_read()
        except TimeoutError:
            self.abort_unread()
        self.should_exit = True


def exit_stuck() -> None:
    """End the process, for its supervisor to restart it: a stuck or broken session cannot be repaired."""
    log.critical("model stuck; exiting for the supervisor to restart", extra={"exit_code": EXIT_STUCK})
    asyncio.get_running_loop().call_later(STUCK_NOTICE_S, _exit_now, EXIT_STUCK)


def _exit_now(code: int) -> None:
    logging.shutdown()  # writes the last lines, within a limit
    os._exit(code)  # sys.exit would join the stuck thread, or abort while it runs


def configuration(app: Application, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app.asgi,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=bounded_protocol(settings, app.refusals),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]  # fractions of a second work too
        timeout_graceful_shutdown=1,  # accepted work is done by then; this is for connections to close
        lifespan="on",
    )


def serve(app: Application, settings: Settings) -> None:
    """Serve until a signal ends it."""
    allow_open_files(settings.max_connections)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    Server(configuration(app, settings), app, settings).run()
    logging.shutdown()
    if _busy_threads():  # a run, load or image that outlasted the drain: the interpreter would join it
        _exit_now(0)


def _busy_threads() -> bool:
    end = time.monotonic() + THREADS_END_S
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    for thread in others:
        thread.join(max(0.0, end - time.monotonic()))
    return any(thread.is_alive() for thread in others)

"""The process: signals, draining, and the end of a process that is stuck."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator

import uvicorn

from quatserve.service.app import Application
from quatserve.service.engine.registry import Registry
from quatserve.service.settings import Settings
from quatserve.service.web.lifecycle import Lifecycle
from quatserve.service.web.open_files import allow_open_files
from quatserve.service.web.protocol import bounded_protocol

EXIT_STUCK = 70
STUCK_NOTICE_S = 2.0  # for /readyz to be seen and the other answers to leave
ANSWERS_BEGUN_S, ANSWERS_STEP_S = 1.0, 0.05
THREADS_END_S = 0.5  # what idle threads need to notice the end, with much to spare
SWITCH_INTERVAL_S = 0.001  # the session thread needs the interpreter briefly and at once, between runs
log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """uvicorn's server with our own signals: SIGTERM drains first, SIGHUP rescans, exit code 0."""

    def __init__(
        self, config: uvicorn.Config, settings: Settings, lifecycle: Lifecycle, registry: Registry
    ) -> None:
        super().__init__(config)
        self._settings, self._lifecycle, self._registry = settings, lifecycle, registry
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handlers on the loop instead of uvicorn's, which would end the process by the signal itself."""
        loop = asyncio.get_running_loop()
        handlers = {
            signal.SIGTERM: self._drain,
            signal.SIGINT: self._drain,
            signal.SIGHUP: self._rescan,
        }
        for number, work in handlers.items():
            loop.add_signal_handler(number, self._spawn, work)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def _spawn(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _rescan(self) -> None:
        if not self._lifecycle.draining:
            await self._registry.rescan()

    async def _drain(self) -> None:
        """Refuse new work but listen on, finish what was accepted, then stop. A second signal stops now."""
        if self._lifecycle.draining:
            self._cut_unread()
            self.should_exit = self.force_exit = True
            return
        log.info("draining", extra={"accepted": self._lifecycle.accepted})
        self._lifecycle.draining = True
        try:
            async with asyncio.timeout(self._settings.drain_timeout_s):
                await asyncio.sleep(self._settings.drain_notice_s)
                await self._lifecycle.finished()
                await self._answers_taken()
        except TimeoutError:
            self._cut_unread()
        self.should_exit = True

    def _cut_unread(self) -> None:
        """Drop clients that leave their answer unread: whoever writes to them would wait for them."""
        for connection in [c for c in self.server_state.connections if c.transport.get_write_buffer_size()]:
            connection.transport.abort()

    async def _answers_taken(self) -> None:
        """Wait until the answers of accepted work have left the process: a slow client may still be reading.

        What arrives now is refused, and not waited for: under load it never ends.
        """
        state = self.server_state
        if state.tasks:  # some write their answer only now
            await asyncio.wait(set(state.tasks), timeout=ANSWERS_BEGUN_S)
        read = [c for c in state.connections if c.transport.get_write_buffer_size()]
        while any(c in state.connections and c.transport.get_write_buffer_size() for c in read):  # noqa: ASYNC110
            await asyncio.sleep(ANSWERS_STEP_S)  # a transport tells nobody that it is empty


def exit_stuck() -> None:
    """End the process for its supervisor to restart: a session that is stuck or broken cannot be mended."""
    log.critical("exiting for the supervisor to start anew", extra={"exit_code": EXIT_STUCK})
    asyncio.get_running_loop().call_later(STUCK_NOTICE_S, _leave, EXIT_STUCK)


def _leave(code: int) -> None:
    sys.stderr.flush()
    os._exit(code)  # not sys.exit: it would wait for the very thread, or abort under it


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
        timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]  # whole seconds are not required
        timeout_graceful_shutdown=1,  # accepted work is through by now: this is for connections to close
        lifespan="on",
    )


def serve(app: Application, settings: Settings) -> None:
    """Serve until told to stop."""
    allow_open_files(settings.max_connections)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    server = Server(configuration(app, settings), settings, app.lifecycle, app.registry)
    server.run()
    if _busy_threads():  # in a run, a load or an image that outlasted the drain: the interpreter would wait
        _leave(0)


def _busy_threads() -> bool:
    end = time.monotonic() + THREADS_END_S
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    for thread in others:
        thread.join(max(0.0, end - time.monotonic()))
    return any(thread.is_alive() for thread in others)

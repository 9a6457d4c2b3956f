"""Runs a function on a daemon thread; shutdown does not wait for it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def run_in_background(work: Callable[[], T], name: str) -> Future[T]:
    """Start `work` on a daemon thread: unlike an executor's, the interpreter does not join it at exit."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # a waiter may give up; the work continues

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  # raised in whoever waits for the future
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future

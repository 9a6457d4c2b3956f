"""Work that nothing waits for at the end."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def aside(work: Callable[[], T], name: str) -> Future[T]:
    """Do it on a daemon thread: event loop and interpreter wait for those of an executor, however long."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # whoever waits may give up, the work goes on

    def do() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  # theirs who wait
            future.set_exception(error)

    threading.Thread(target=do, name=name, daemon=True).start()
    return future

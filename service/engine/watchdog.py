"""Reports work that does not end in time."""

import asyncio
from collections.abc import Callable

STEPS = 10


class Watchdog:
    """Calls `give_up` on the event loop if watched work has not ended within `limit_s`.

    The wait is split into steps: a process that was suspended (SIGSTOP, VM pause) finds a single long timer
    already due when it resumes, and would give up at once.
    """

    def __init__(self, limit_s: float, give_up: Callable[[str], None]) -> None:
        self._step_s, self._give_up = limit_s / STEPS, give_up

    def watch(self, has_ended: Callable[[], bool], reason: str, steps: int = STEPS) -> None:
        """Ask `has_ended` at each step. Called from the event loop."""
        if has_ended():
            return
        if steps:
            loop = asyncio.get_running_loop()
            loop.call_later(self._step_s, self.watch, has_ended, reason, steps - 1)
        else:
            self._give_up(reason)

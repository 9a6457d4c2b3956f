"""Measurements are made again when other programs used the processors meanwhile: their figure says little."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

OTHERS_LIMIT = 0.15  # of one core
TRIES = 6
PAUSE_S = 1.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
T = TypeVar("T")


def _busy_s() -> float:
    """Processor time of all programs since the machine started."""
    user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    return (int(user) + int(nice) + int(system)) / TICKS_PER_S


def _processes() -> Iterator[tuple[int, float]]:
    """(process group, seconds used by it and by its children that ended) of each process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            yield int(fields[2]), sum(map(int, fields[11:15])) / TICKS_PER_S


def _others_s(groups: set[int]) -> float:
    return _busy_s() - sum(used for group, used in _processes() if group in groups)


def undisturbed(measure: Callable[[], T], groups: Iterable[int] = ()) -> T:
    """What `measure` returns, of the first try that this process and these groups had to themselves."""
    ours = {os.getpgrp(), *groups}
    for _ in range(TRIES):
        begun, before = time.perf_counter(), _others_s(ours)
        value = measure()
        share = (_others_s(ours) - before) / (time.perf_counter() - begun)
        if share <= OTHERS_LIMIT:
            return value
        print(f"  other programs took {share:.2f} of a core: again", flush=True)
        time.sleep(PAUSE_S)
    raise SystemExit("other programs keep the processors busy: stop them, and measure again")

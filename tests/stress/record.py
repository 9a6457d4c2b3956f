"""What one attack did, and which promises held. Every figure comes from the run itself."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.service.harness import RunningService

SERVICE = ("-m", "quatserve", "serve")
FLAT = 1.05  # memory after over memory before, at most


@dataclass(frozen=True)
class Check:
    """One promise. Those of time and memory mean something on a quiet machine: the suite leaves them out."""

    promise: str
    figure: str
    met: bool
    quiet: bool = False


@dataclass
class Record:
    """Filled by an attack while it runs."""

    attack: str
    seconds: float = 0.0
    by_status_s: dict[int, list[float]] = field(default_factory=dict)  # how long each answer took
    untimed: int = 0  # requests somebody else sent and judged
    memory_before: int = 0
    memory_after: int = 0
    checks: list[Check] = field(default_factory=list)

    def answered(self, status: int, seconds: float) -> None:
        """Status 0 is no answer at all."""
        self.by_status_s.setdefault(status, []).append(seconds)

    def check(self, promise: str, figure: object, met: bool, *, quiet: bool = False) -> None:
        self.checks.append(Check(promise, str(figure), met, quiet))

    def check_memory(self) -> None:
        growth = self.memory_after / self.memory_before
        self.check(
            f"resident memory at most {FLAT:.2f} of before", f"{growth:.3f}", growth <= FLAT, quiet=True
        )

    @property
    def held(self) -> bool:
        return all(check.met for check in self.checks)

    def count(self, status: int) -> int:
        return len(self.by_status_s.get(status, ()))

    def total(self) -> int:
        return self.untimed + sum(map(len, self.by_status_s.values()))

    def statuses(self) -> str:
        return ", ".join(
            f"{status or 'no answer'}: {self.count(status):,}" for status in sorted(self.by_status_s)
        )

    def quantile_s(self, quantile: float, status: int | None = None) -> float:
        """Of the answers with that status, or of all of them; 0 where there are none."""
        chosen = self.by_status_s.values() if status is None else [self.by_status_s.get(status, [])]
        times = [seconds for some in chosen for seconds in some]
        return float(np.quantile(times, quantile)) if times else 0.0


def resident_bytes(running: RunningService) -> int:
    pages = Path(f"/proc/{running.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def settle(condition: Callable[[], bool], limit_s: float = 5.0) -> float:
    """How long it took to become true; the limit where it did not."""
    begun = time.monotonic()
    while not condition() and time.monotonic() - begun < limit_s:
        time.sleep(0.01)
    return time.monotonic() - begun


@contextmanager
def measured(record: Record, running: RunningService) -> Iterator[None]:
    """Time and memory of what happens inside; to be opened when the service is warm."""
    record.memory_before = resident_bytes(running)
    begun = time.monotonic()
    yield
    record.seconds += time.monotonic() - begun
    record.memory_after = resident_bytes(running)


@contextmanager
def under_attack(
    record: Record, models_dir: Path, program: tuple[str, ...] = SERVICE, **settings: Any
) -> Iterator[RunningService]:
    """A service of the attack's own, which must be alive and ready afterwards and end with exit code 0."""
    running = RunningService(models_dir, program, **settings)
    try:
        yield running
        ready = httpx.get(f"{running.url}/readyz").status_code == 200
    finally:
        code = running.stop()
    record.check("ready afterwards, and exit code 0", f"ready {ready}, exit code {code}", ready and code == 0)

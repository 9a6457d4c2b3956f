"""Figures of several contenders, one per round, and what they say about a bound."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime as ort

from quatserve.service.engine.cpus import usable_cpus


@dataclass
class Figures:
    """NAME -> a value per round. Contenders alternate, so the values of one round belong together."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)
        print(f"  {name}: {value:,.2f}", flush=True)

    def of(self, name: str) -> list[float]:
        return self.values[name]

    def ratios(self, name: str, to: str) -> list[float]:
        """Round by round: what slows the whole machine down slows both."""
        return [a / b for a, b in zip(self.of(name), self.of(to), strict=True)]

    def differences(self, name: str, to: str) -> list[float]:
        return [a - b for a, b in zip(self.of(name), self.of(to), strict=True)]


@dataclass(frozen=True)
class Bound:
    """What a figure should be: at least, or at most, so much."""

    limit: float
    at_least: bool
    text: str

    def kept(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


def at_least(limit: float, text: str) -> Bound:
    return Bound(limit, True, text)


def at_most(limit: float, text: str) -> Bound:
    return Bound(limit, False, text)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, and the quartiles where there is more than one value."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    if len(values) == 1:
        return f"{middle:,.{digits}f}"
    return f"{middle:,.{digits}f} ({low:,.{digits}f}–{high:,.{digits}f})"


@dataclass(frozen=True)
class Row:
    """A line of the table: figures with their unit, or a relation of figures with its bound."""

    name: str
    values: Sequence[float]
    unit: str = ""
    bound: Bound | None = None
    digits: int = 2

    @property
    def kept(self) -> bool | None:
        return None if self.bound is None else self.bound.kept(float(np.median(self.values)))

    def line(self) -> str:
        target = self.bound.text if self.bound else ""
        met = {None: "", True: "yes", False: "**no**"}[self.kept]
        return f"| {self.name} | {spread(self.values, self.digits)} {self.unit} | {target} | {met} |"


HEAD = ("| what | median (quartiles) | target | met |", "|---|---|---|---|")


def table(rows: Sequence[Row]) -> list[str]:
    return [*HEAD, *(row.line() for row in rows)]


def processor() -> str:
    names = [line for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")]
    return names[0].split(":", 1)[1].strip() if names else platform.machine()


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def machine() -> str:
    versions = f"Python {platform.python_version()}, onnxruntime {ort.__version__}"
    return f"{usable_cpus()} cores of {processor()}, {versions}"

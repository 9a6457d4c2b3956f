"""docs/reliability.md: the figures of one run, and the machine they were measured on."""

import os
import platform
import re
from pathlib import Path

import onnxruntime as ort

from quatserve.service.engine.cpus import usable_cpus
from tests.stress.record import Check, Record

MEGABYTE = 1e6
INTRODUCTION = """\
# Reliability

`make stress`: what attacks on a real service process over loopback found, in one run of {seconds:.0f} s.
Every figure was measured in that run.

{machine}

Service and clients share the processors. The models are tiny, made for the tests, so that it is the service
which is measured; `kill -9` restarts the shipped ones. Seeds are fixed. Latency is what the clients saw,
memory is the resident size of the service process. A short version of each attack is part of `make test`.

{verdict}
"""


def _first_line(path: str, pattern: str) -> str:
    found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    return found[1].strip() if found else "unknown"


def machine(load: float) -> str:
    """What the figures depend on."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    processor = _first_line("/proc/cpuinfo", r"^model name\s*: (.*)$")
    return (
        f"{processor}, {usable_cpus()} processors, {memory_gb:.0f} GB; {platform.system()}, "
        f"Python {platform.python_version()}, onnxruntime {ort.__version__}. "
        f"Load average before the run: {load:.1f}."
    )


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _mark(met: bool) -> str:
    return "met" if met else "**missed**"


def _summary(record: Record) -> str:
    kept = sum(check.met for check in record.checks)
    times = [f"{1000 * record.quantile_s(q):.1f}" if record.by_status_s else "" for q in (0.5, 0.99)]
    sizes = [f"{size / MEGABYTE:.1f}" if size else "" for size in (record.memory_before, record.memory_after)]
    cells = [record.attack, f"{record.total():,}", f"{record.seconds:.1f}", *times, *sizes]
    cells += [f"{kept} of {len(record.checks)}", _mark(record.held)]
    return " ".join(["|", " | ".join(map(_cell, cells)), "|"]).replace("|  |", "| |").replace("|  |", "| |")


def _line(attack: str, check: Check) -> str:
    return f"| {_cell(attack)} | {_cell(check.promise)} | {_cell(check.figure)} | {_mark(check.met)} |"


def page(records: list[Record], seconds: float, load: float) -> str:
    """The whole document."""
    held = sum(record.held for record in records)
    verdict = f"{held} of {len(records)} attacks met every promise."
    lines = [INTRODUCTION.format(seconds=seconds, machine=machine(load), verdict=verdict)]
    lines += ["| attack | requests | s | p50, ms | p99, ms | memory before, MB | after, MB | promises | |"]
    lines += ["|---|---|---|---|---|---|---|---|---|", *map(_summary, records), ""]
    lines += ["## Promise by promise", "", "| attack | promise | measured | |", "|---|---|---|---|"]
    lines += [_line(record.attack, check) for record in records for check in record.checks]
    return "\n".join([*lines, ""])

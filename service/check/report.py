"""The rows of the report: as a table for a person, as JSON for a bug report, and as an exit code."""

import json
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

EXIT_OK, EXIT_FAILED, EXIT_NO_GPU = 0, 1, 3
NAME_WIDTH, FOUND_WIDTH = 40, 78


class Verdict(StrEnum):
    OK = "ok"
    FAILED = "FAILED"
    MEASURED = "-"  # a figure without a bound


@dataclass(frozen=True)
class Row:
    name: str
    verdict: Verdict
    found: str
    values: dict[str, Any] = field(default_factory=dict)  # the figures behind `found`


def judged(name: str, passed: bool, found: str, **values: Any) -> Row:
    return Row(name, Verdict.OK if passed else Verdict.FAILED, found, values)


def measured(name: str, found: str, **values: Any) -> Row:
    return Row(name, Verdict.MEASURED, found, values)


Check = Callable[[], Iterable[Row]]


def run_checks(checks: Iterable[tuple[str, Check]]) -> Iterator[Row]:
    """The rows of every check; one that raises is a failed row, and the next goes on."""
    for name, check in checks:
        try:
            yield from check()
        except Exception as error:  # noqa: BLE001  # a GPU may fail in any way
            yield Row(name, Verdict.FAILED, f"{type(error).__name__}: {error}")


def lines(row: Row) -> str:
    """One row of the table; what was found goes on below where it is long."""
    first, *rest = textwrap.wrap(row.found, FOUND_WIDTH) or [""]
    further = [f"{'':{NAME_WIDTH + 8}}{line}" for line in rest]
    return "\n".join([f"{row.name:{NAME_WIDTH}}{row.verdict:8}{first}", *further])


def exit_code(rows: Iterable[Row]) -> int:
    return EXIT_FAILED if any(row.verdict is Verdict.FAILED for row in rows) else EXIT_OK


def as_json(rows: Iterable[Row]) -> str:
    return json.dumps({"rows": [asdict(row) for row in rows]}, indent=1)

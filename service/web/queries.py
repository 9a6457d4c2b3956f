"""Query parameters of the inference routes: parsed by hand, since most requests have none."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import parse_qsl

from quatserve.service.errors import BadParameterError
from quatserve.service.imaging.render import Output

MAX_TOP_K = 1000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClassifyQuery:
    model: str | None = None
    top_k: int = 5


@dataclass(frozen=True, slots=True)
class SegmentQuery:
    model: str | None = None
    output: Output = Output.MASK
    threshold: float = 0.5


def _pairs(query: bytes, known: AbstractSet[str]) -> dict[str, str]:
    """Each parameter once, and none that is misspelt: a silent default would be a wrong answer."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=16, errors="strict")
    except ValueError as error:
        raise BadParameterError("the query string cannot be read") from error
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadParameterError("a parameter is given twice")
    if unknown := found.keys() - known:
        raise BadParameterError(
            f"{min(unknown)[:40]!r} is not a parameter; known are {', '.join(sorted(known))}"
        )
    return found


def _read(text: str, convert: Callable[[str], T], allowed: Callable[[T], bool], rule: str) -> T:
    try:
        value = convert(text)
    except ValueError:
        raise BadParameterError(f"{text[:40]!r} is not valid: {rule}") from None
    if not allowed(value):
        raise BadParameterError(f"{text[:40]!r} is not valid: {rule}")
    return value


def classify_query(query: bytes) -> ClassifyQuery:
    if not query:
        return ClassifyQuery()
    found = _pairs(query, {"model", "top_k"})
    top_k = _read(
        found.get("top_k", "5"), int, lambda k: 1 <= k <= MAX_TOP_K, f"top_k is from 1 to {MAX_TOP_K}"
    )
    return ClassifyQuery(found.get("model"), top_k)


def segment_query(query: bytes) -> SegmentQuery:
    if not query:
        return SegmentQuery()
    found = _pairs(query, {"model", "output", "threshold"})
    rule = f"output is one of {', '.join(Output)}"
    output = _read(found.get("output", "mask"), Output, lambda _: True, rule)
    threshold = _read(found.get("threshold", "0.5"), float, lambda t: 0 <= t <= 1, "threshold is from 0 to 1")
    return SegmentQuery(found.get("model"), output, threshold)

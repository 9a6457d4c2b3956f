"""From a classifier's row to the predictions of a response or a table."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

Predictions = list[dict[str, object]]


def top(row: NDArray[Any], labels: Sequence[str], top_k: int) -> Predictions:
    """The `top_k` most probable classes, best first.

    In plain Python: numpy would release the interpreter's lock, and then wait to get it back.
    """
    values = row.tolist()
    order = sorted(range(len(values)), key=values.__getitem__, reverse=True)[:top_k]
    return [{"label": labels[i], "index": i, "probability": round(values[i], 6)} for i in order]

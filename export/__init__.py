"""Turns a network into an artifact: folded, proven equal to the network, written atomically.

    from quatserve.export import fold

The functions are imported when they are first used: the commands that need no torch must not load it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quatserve.export.folding import fold

__all__ = ["fold"]


def __getattr__(name: str) -> Any:
    if name == "fold":
        from quatserve.export.folding import fold

        return fold
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Turns a network into an artifact: folded, proven equal to the network, written atomically.

    from quatserve.export import build, fold

The functions are imported when they are first used: the commands that need no torch must not load it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quatserve.export.artifact.building import build
    from quatserve.export.folding import fold

__all__ = ["build", "fold"]
_HOMES = {"build": "quatserve.export.artifact.building", "fold": "quatserve.export.folding"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

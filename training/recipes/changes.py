"""A recipe with some of its fields changed by name: `epochs`, `network.width`, `task.crop`, ...

The rate follows the batch: k times the images take sqrt(k) times the rate, unless a rate is given.
Orthogonal steps have one length whatever the gradient's, as Adam's have, and the square root is the rule for
those (Malladi et al., *On the SDEs and scaling rules for adaptive gradient algorithms*, 2022).
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from quatserve.training.errors import UserError
from quatserve.training.recipes.schema import Recipe, as_json, from_json

SEARCHED = ("task", "network", "schedule")  # parts whose fields may be named without them
FIXED = ("kind", "name", "dataset")


def changed(recipe: Recipe, changes: Mapping[str, Any], *, rate: float | None = None) -> Recipe:
    """`recipe` with the named fields changed; `rate` is the highest of its schedule."""
    fields = as_json(recipe)
    for name, value in changes.items():
        _set(fields, name, value)
    if rate is None:
        rate = recipe.schedule.highest * _rate_of_batch(recipe.batch_size, fields["batch_size"])
    if rate != recipe.schedule.highest:
        _scale(fields["schedule"], rate, recipe.schedule.highest)
    try:
        return from_json(fields)
    except ValueError as error:
        raise UserError(f"{recipe.name}: {error}") from error


def parse_assignment(text: str) -> tuple[str, Any]:
    """NAME=VALUE; the value is JSON where it can be read as such, and text elsewhere."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UserError(f"--set {text!r} is no assignment: write NAME=VALUE, such as task.crop=0.5")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _rate_of_batch(before: int, after: Any) -> float:
    valid = isinstance(after, int) and after > 0  # what is not, is refused with all the rest
    return math.sqrt(after / before) if valid else 1.0


def _set(fields: dict[str, Any], name: str, value: Any) -> None:
    part, _, leaf = name.rpartition(".")
    place = fields.get(part) if part else fields
    if not isinstance(place, dict) or leaf not in place or leaf in FIXED or isinstance(place[leaf], dict):
        near = [f"{part}.{leaf}" for part in SEARCHED if leaf in fields[part]]
        hint = f"did you mean {' or '.join(near)}?" if near and not part else f"use one of {_names(fields)}"
        raise UserError(f"--set {name}={value}: no such field; {hint}")
    place[leaf] = value


def _names(fields: dict[str, Any]) -> str:
    names = []
    for name, value in fields.items():
        inner = (
            [f"{name}.{leaf}" for leaf in value if leaf not in FIXED] if isinstance(value, dict) else [name]
        )
        names += [leaf for leaf in inner if leaf.rpartition(".")[2] not in FIXED]
    return ", ".join(names)


def _scale(schedule: dict[str, Any], rate: float, highest: float) -> None:
    if "peak" in schedule:
        schedule["peak"] = rate
    else:
        schedule["rates"] = [[start, value * rate / highest] for start, value in schedule["rates"]]

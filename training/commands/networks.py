"""List the networks with their size and their work.

Each has the name of the first recipe that trains it. Parameters count running statistics, as the paper's
tables do; "trainable" leaves them out. Multiply-accumulates are those of the convolutions and the dense
layer for one image, run as the real operations that they are.
"""

import argparse
import json
from typing import TYPE_CHECKING, Any

from quatserve.training.commands.arguments import json_argument

if TYPE_CHECKING:
    from quatserve.training.recipes.schema import Recipe

NAME = "networks"
EXAMPLES = """examples:
  quatserve networks
  quatserve networks --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    json_argument(parser)


def run(options: argparse.Namespace) -> None:
    from quatserve.training.commands.table import format_table

    rows = [describe(recipe) for recipe in distinct_networks()]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    header = ("name", "algebra", "task", "parameters", "trainable", "multiply-accumulates")
    numbers = (3, 4, 5)
    cells = [
        [f"{value:,}" if isinstance(value, int) else value for value in list(row.values())[: len(header)]]
        for row in rows
    ]
    print(format_table(header, cells, right=numbers))


def distinct_networks() -> "list[Recipe]":
    """For each network and input size, the first recipe that trains it."""
    from quatserve.training.recipes import RECIPES

    firsts: dict[Any, Recipe] = {}
    for build in RECIPES.values():
        recipe = build()
        firsts.setdefault((recipe.network, recipe.height, recipe.width), recipe)
    return list(firsts.values())


def describe(recipe: "Recipe") -> dict[str, Any]:
    from quatserve.training.networks.build import build_network
    from quatserve.training.networks.counting import count_multiply_accumulates, count_parameters

    network = build_network(recipe.network)
    total, trainable = count_parameters(network)
    return {
        "name": recipe.name,
        "algebra": recipe.network.algebra,
        "task": recipe.network.task,
        "parameters": total,
        "trainable": trainable,
        "multiply_accumulates": count_multiply_accumulates(network, recipe.height, recipe.width),
        "height": recipe.height,
        "width": recipe.width,
    }

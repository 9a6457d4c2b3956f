"""List the recipes that `fit` trains.

Recipes named `paper-*` follow the paper's text, and its authors' code where the text is silent (the head of
training/recipes/paper.py names what still differs). The others are ours: the same networks in fewer epochs,
further cycles for what they have trained (--from), and a wider network to teach them.
"""

import argparse
import json

from quatserve.training.commands.arguments import json_argument

NAME = "recipes"
EXAMPLES = """examples:
  quatserve recipes
  quatserve recipes --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    json_argument(parser)


def run(options: argparse.Namespace) -> None:
    from quatserve.training.commands.table import format_table
    from quatserve.training.recipes import RECIPES
    from quatserve.training.recipes.schema import as_json

    recipes = [build() for build in RECIPES.values()]
    if options.json:
        print(json.dumps([as_json(recipe) for recipe in recipes], indent=2))
        return
    for title, paper in (("ours", False), ("the paper's procedure", True)):
        rows = [
            (recipe.name, str(recipe.epochs), str(recipe.batch_size), recipe.summary)
            for recipe in recipes
            if recipe.name.startswith("paper-") == paper
        ]
        print(f"{title}\n{format_table(('name', 'epochs', 'batch', 'summary'), rows, right=(1, 2))}\n")

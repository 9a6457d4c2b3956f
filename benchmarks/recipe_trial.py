"""A short training with some numbers of a recipe changed: what a choice is worth on held-out images.

    python benchmarks/recipe_trial.py cifar10-quaternion-holdout --data data --epochs 1 --kernel-rate 0.15

The recipe must hold out a split: the test set is never used to choose. One JSON line an epoch.
"""

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path

import torch

from quatserve.training.loop.batches import read_data
from quatserve.training.loop.ranks import Ranks
from quatserve.training.loop.trainer import Trainer
from quatserve.training.recipes import find_recipe
from quatserve.training.recipes.schedule import OneCycle
from quatserve.training.recipes.schema import Recipe


def changed(recipe: Recipe, options: argparse.Namespace) -> Recipe:
    """The recipe with the options that were given."""
    names = ("epochs", "kernel_rate", "momentum", "batch_size", "prune", "height", "width")
    fields = {name: getattr(options, name) for name in names}
    if options.peak:
        fields["schedule"] = OneCycle(peak=options.peak)
    if options.crop:
        fields["augmentation"] = dataclasses.replace(recipe.augmentation, crops=((0.0, options.crop),))
    if options.size:
        fields["augmentation"] = dataclasses.replace(recipe.augmentation, sizes=((0.0, options.size),))
    return dataclasses.replace(recipe, **{name: value for name, value in fields.items() if value is not None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--peak", type=float, help="of a one-cycle schedule")
    parser.add_argument("--kernel-rate", type=float, help="0: SGD throughout")
    parser.add_argument("--momentum", type=float)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--prune", type=float, help="share of easy images that an epoch leaves out")
    parser.add_argument("--crop", type=int, help="one crop size throughout")
    parser.add_argument("--size", type=float, help="of road frames in training, as a part of the recipe's")
    parser.add_argument("--height", type=int, help="of the road network's input")
    parser.add_argument("--width", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    recipe = changed(find_recipe(options.recipe), options)
    if not recipe.holdout:
        parser.error(f"{recipe.name} holds nothing out")
    trainer = Trainer(
        recipe,
        options.seed,
        read_data(recipe, options.data),
        torch.device("cpu"),
        compiled=True,
        ranks=Ranks(),
    )
    begun = time.monotonic()

    def progress(images: int, of: int, loss: float, score: float) -> None:
        rate = images / (time.monotonic() - begun)
        print(
            f"{images:,} of {of:,} images, loss {loss:.3f}, score {score:.3f}, {rate:.0f}/s", file=sys.stderr
        )

    for epoch in range(recipe.epochs):
        begun = time.monotonic()
        row = {"epoch": epoch + 1, **trainer.train_epoch(epoch, progress), "held_out": trainer.validate()}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

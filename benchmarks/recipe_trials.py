"""Short runs that differ from a shared baseline in one thing each, judged on held-out training images.

    python benchmarks/recipe_trials.py --data data --out runs/trials

Each run is a run directory of `fit`: what is finished is not repeated, what was interrupted goes on. The test
set is never read. Prints the table of docs/experiments.md.
"""

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import torch

from quatserve.training.loop import run as runs
from quatserve.training.loop.fit import fit
from quatserve.training.loop.ranks import Ranks
from quatserve.training.recipes import find_recipe
from quatserve.training.recipes.cifar import untaught
from quatserve.training.recipes.schedule import OneCycle
from quatserve.training.recipes.schema import Recipe

HOLDOUT = 5_000  # the teacher saw none of these either


def smaller_batches(recipe: Recipe) -> Recipe:
    """Four times the steps; rates by the square root, the average over as many images."""
    rate = OneCycle(peak=0.05, warm_up=0.05)
    return dataclasses.replace(recipe, batch_size=32, schedule=rate, ema_decay=0.99975)


def taught(recipe: Recipe) -> Recipe:
    return dataclasses.replace(recipe, distil=0.9, teacher=f"{recipe.dataset}-teacher")


CHANGES: dict[str, tuple[str, Callable[[Recipe], Recipe]]] = {
    "baseline": ("labels alone, orthogonal steps, batches of 128", lambda recipe: recipe),
    "sgd": ("SGD for the kernels too", lambda recipe: dataclasses.replace(recipe, kernel_rate=0.0)),
    "batch-32": ("batches of 32, half the rates", smaller_batches),
    "taught": ("a teacher's answers, 0.9 of the loss", taught),
}


def trial(name: str, dataset: str, epochs: int) -> Recipe:
    baseline = untaught(find_recipe(f"{dataset}-quaternion"))
    baseline = dataclasses.replace(baseline, epochs=epochs, holdout=HOLDOUT)
    return dataclasses.replace(CHANGES[name][1](baseline), name=f"{dataset}-trial-{name}")


def held_out_errors(run: Path) -> list[float]:
    return [row["validation_score"] for row in runs.read_metrics(run)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="where the run directories are")
    parser.add_argument("--dataset", choices=("cifar10", "cifar100"), default="cifar10")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=CHANGES, default=list(CHANGES))
    options = parser.parse_args()
    print(f"| change | held-out error after {options.epochs} epochs, by seed | mean |\n|---|---|---|")
    for name in options.only:
        recipe = trial(name, options.dataset, options.epochs)
        errors = []
        for seed in range(options.seeds):
            run = options.out / f"{recipe.name}-{seed}"
            fit(
                recipe,
                options.data,
                run,
                seed=seed,
                device=torch.device("cpu"),
                compiled=True,
                resume=(run / runs.CONFIG).exists(),
                ranks=Ranks(),
                teacher=runs.find_teacher(recipe) if recipe.teacher else None,
            )
            errors.append(held_out_errors(run)[-1])
        by_seed = ", ".join(f"{error:.2%}" for error in errors)
        print(f"| {CHANGES[name][0]} | {by_seed} | {mean(errors):.2%} |", flush=True)


if __name__ == "__main__":
    main()

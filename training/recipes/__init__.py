"""Recipes: named functions that return a frozen, validated configuration of a whole training run."""

from collections.abc import Callable
from functools import partial

from quatserve.training.errors import UserError
from quatserve.training.recipes import cifar, folder, paper, road
from quatserve.training.recipes.schema import Dataset, Recipe


def _all() -> dict[str, Callable[[], Recipe]]:
    ours = ("quaternion", "complex", "real", "octonion")
    theirs = ours[:3]
    sets: tuple[tuple[Dataset, int], ...] = (("cifar10", 10), ("cifar100", 100))
    kinds = [(dataset, classes, deep) for dataset, classes in sets for deep in (False, True)]
    builders: list[Callable[[], Recipe]] = [
        *(partial(cifar.taught, algebra, *kind[:2], deep=kind[2]) for kind in kinds for algebra in ours),
        *(partial(cifar.teacher, *dataset) for dataset in sets),
        *(partial(road.fast, algebra) for algebra in ours),
        *(partial(folder.classes, algebra) for algebra in ours),
        *(partial(folder.masks, algebra) for algebra in ours),
        *(partial(paper.cifar, algebra, *kind[:2], deep=kind[2]) for kind in kinds for algebra in theirs),
        *(partial(paper.road, algebra) for algebra in theirs),
    ]
    return {build().name: build for build in builders}


RECIPES = _all()


def find_recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise UserError(f"recipe {name!r} is unknown: `quatserve recipes` lists them")
    return RECIPES[name]()

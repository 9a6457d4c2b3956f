"""Recipes: what the paper prescribes, what is validated, and that files carry them whole."""

import dataclasses
import json

import pytest

from quatserve.training.commands.main import main
from quatserve.training.errors import UserError
from quatserve.training.recipes import RECIPES, find_recipe
from quatserve.training.recipes.schema import Augmentation, Recipe, as_json, from_json


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_json(name: str) -> None:
    recipe = find_recipe(name)
    assert recipe.name == name
    assert from_json(json.loads(json.dumps(as_json(recipe)))) == recipe


@pytest.mark.parametrize("algebra", ["real", "complex", "quaternion"])
@pytest.mark.parametrize("dataset", ["cifar10", "cifar100", "kitti-road"])
def test_the_papers_rates(algebra: str, dataset: str) -> None:
    """0.01, from epoch 10 on 0.1, then a tenth twice: at 120 and 150 (the road: at 50, 100 and 150)."""
    recipe = find_recipe(f"paper-{dataset}-{algebra}")
    at = (0, 9.99, 10, 49.9, 50, 119, 120, 149, 150, 199)
    expected = {
        "kitti-road": (0.01, 0.01, 0.1, 0.1, 0.01, 0.001, 0.001, 0.001, 0.0001, 0.0001),
    }.get(dataset, (0.01, 0.01, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001))
    assert tuple(recipe.schedule.rate(epoch, recipe.epochs) for epoch in at) == expected
    assert recipe.epochs == 200
    assert recipe.network.algebra == algebra


def test_every_network_of_the_paper_has_a_fast_recipe() -> None:
    for name in RECIPES:
        if name.startswith("paper-"):
            assert name.removeprefix("paper-") in RECIPES


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("epochs", 0, "epochs is 0"),
        ("batch_size", -1, "batch_size is -1"),
        ("ema_decay", 1.0, "within"),
        ("label_smoothing", -0.1, "within"),
        ("weight_decay", -1e-4, "negative"),
        ("holdout", -1, "negative"),
        ("distil", 1.1, "distil must lie within"),
        ("precision", "fp8", "'fp8' must be fp32 or bf16"),
        ("dataset", "kitti-road", "does not go with"),
    ],
)
def test_a_bad_value_is_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(find_recipe("cifar10-quaternion"), **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("crops", [(), ((0.1, 24),), ((0.0, 24), (0.5, 28), (0.4, 32))])
def test_crops_must_start_at_the_beginning_and_rise(crops: tuple[tuple[float, int], ...]) -> None:
    with pytest.raises(ValueError, match="crops must start at 0 and rise"):
        Augmentation(crops=crops)


def test_crops_grow_with_the_run() -> None:
    crops = Augmentation(crops=((0.0, 24), (0.5, 28), (0.75, 32)))
    assert [crops.side(progress) for progress in (0, 0.49, 0.5, 0.74, 0.75, 0.99)] == [24, 24, 28, 28, 32, 32]


def test_road_frames_grow_with_the_run() -> None:
    sizes = Augmentation(sizes=((0.0, 0.75), (0.5, 1.0)))
    assert [sizes.size(progress) for progress in (0, 0.49, 0.5, 0.99)] == [0.75, 0.75, 1.0, 1.0]


@pytest.mark.parametrize("name", ["erase", "shadow"])
@pytest.mark.parametrize("value", [-0.1, 1.0])
def test_erased_and_shaded_parts_are_less_than_all(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{name} {value} must lie within \[0, 1\)"):
        Augmentation(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [(((0.1, 1.0),), "sizes must start at 0"), (((0.0, 1.5),), "within"), (((0.0, 0.0),), "within")],
)
def test_sizes_are_parts_from_the_beginning_on(sizes: tuple[tuple[float, float], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Augmentation(sizes=sizes)


def test_a_road_recipe_has_no_teacher() -> None:
    with pytest.raises(ValueError, match=r"distil .* goes with CIFAR"):
        dataclasses.replace(find_recipe("kitti-road-quaternion"), distil=0.5)


def test_a_recipe_of_an_older_run_is_read() -> None:
    """What it does not name is what it was before there was a choice."""
    recipe = find_recipe("cifar10-quaternion")
    data = json.loads(json.dumps(as_json(recipe)))
    for name in ("distil", "precision", "prune"):
        del data[name]
    assert from_json(data) == recipe


def test_an_unknown_recipe_is_named() -> None:
    with pytest.raises(UserError, match="'cifar10-quaternio' is unknown"):
        find_recipe("cifar10-quaternio")


def test_the_command_lists_every_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    assert set(RECIPES) == set(names) - {"name"}
    paper = lines.index("the paper's procedure")
    assert all(("paper-" in line) == (i > paper + 1) for i, line in enumerate(lines) if " network" in line)


def test_json_holds_whole_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "--json"]) == 0
    recipes: list[Recipe] = [from_json(data) for data in json.loads(capsys.readouterr().out)]
    assert recipes == [find_recipe(name) for name in RECIPES]

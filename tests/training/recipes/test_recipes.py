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
        ("weight_decay", -1e-4, "weight_decay is -0.0001: it must not be negative"),
        ("gamma_decay", -1e-4, "gamma_decay is -0.0001: it must not be negative"),
        ("holdout", -1, "negative"),
        ("distil", 1.1, "distil must lie within"),
        ("precision", "fp8", "'fp8' must be fp32 or bf16"),
        ("checkpoint", "bf16", "checkpoint 'bf16' must be fp32 or fp16"),
        ("dataset", "kitti-road", "does not go with"),
    ],
)
def test_a_bad_value_is_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(find_recipe("paper-cifar10-quaternion"), **{field: value})  # type: ignore[arg-type]


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
    for name in ("teacher", "precision", "checkpoint", "gamma_decay"):
        del data[name]
    assert from_json(data) == dataclasses.replace(recipe, teacher="", gamma_decay=0.0)


def test_fields_that_no_recipe_has_any_more_are_ignored() -> None:
    recipe = find_recipe("cifar10-quaternion")
    data = json.loads(json.dumps(as_json(recipe)))
    data |= {"label_smoothing": 0.1, "repeats": 2, "prune": 0.5, "continues": True}
    data["augmentation"]["crops"] = [[0.0, 24]]
    assert from_json(data) == recipe


def test_a_field_that_no_recipe_ever_had_is_an_error() -> None:
    data = as_json(find_recipe("cifar10-quaternion")) | {"epoch": 3}
    with pytest.raises(TypeError, match="epoch"):
        from_json(data)


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_a_teacher_never_sees_what_its_students_hold_out(dataset: str) -> None:
    students = [find_recipe(name) for name in RECIPES if find_recipe(name).teacher == f"{dataset}-teacher"]
    teacher = find_recipe(f"{dataset}-teacher")
    assert len(students) == 8  # four algebras, shallow and deep
    assert teacher.holdout == 5_000
    assert {student.holdout for student in students} == {2_000}
    assert {student.network.head for student in students} == {teacher.network.head}


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

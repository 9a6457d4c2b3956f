"""Recipes: what the paper prescribes, what is validated, and that files carry them whole."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from quatserve.training.commands.main import main
from quatserve.training.errors import UserError
from quatserve.training.recipes import RECIPES, find_recipe
from quatserve.training.recipes.schema import Classification, Recipe, Segmentation, as_json, from_json


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
        ("epochs", 0, "greater than 0"),
        ("batch_size", -1, "greater than 0"),
        ("ema_decay", 1.0, "less than 1"),
        ("momentum", 1.0, "less than 1"),
        ("weight_decay", -1e-4, "greater than or equal to 0"),
        ("gamma_decay", -1e-4, "greater than or equal to 0"),
        ("clip_norm", 0, "greater than 0"),
        ("holdout", -1, "greater than or equal to 0"),
        ("distil", 1.1, "less than or equal to 1"),
        ("precision", "fp8", "'fp32' or 'bf16'"),
        ("checkpoint", "bf16", "'fp32' or 'fp16'"),
        ("dataset", "mnist", "'cifar10', 'cifar100', 'kitti-road', 'folder' or 'masks'"),
    ],
)
def test_a_bad_value_is_refused_by_its_name_and_bound(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=rf"(?s){field}\n.*{message}"):
        dataclasses.replace(find_recipe("cifar10-quaternion"), **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "kitti-road"}, "kitti-road does not go with a classification network"),
        ({"task": Segmentation()}, "a classification network does not go with the task segmentation"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(find_recipe("cifar10-quaternion"), **changes)


def test_road_frames_grow_with_the_run() -> None:
    sizes = Segmentation(sizes=((0.0, 0.75), (0.5, 1.0)))
    assert [sizes.size(progress) for progress in (0, 0.49, 0.5, 0.99)] == [0.75, 0.75, 1.0, 1.0]


@pytest.mark.parametrize(("task", "name"), [(Classification, "erase"), (Segmentation, "shadow")])
@pytest.mark.parametrize(("value", "bound"), [(-0.1, "greater than or equal to 0"), (1.0, "less than 1")])
def test_erased_and_shaded_parts_are_less_than_all(
    task: Callable[..., object], name: str, value: float, bound: str
) -> None:
    with pytest.raises(ValueError, match=rf"(?s){name}\n.*{bound}"):
        task(**{name: value})


@pytest.mark.parametrize(
    ("sizes", "message"),
    [(((0.1, 1.0),), "sizes must start at 0"), (((0.0, 1.5),), "within"), (((0.0, 0.0),), "within")],
)
def test_sizes_are_parts_from_the_beginning_on(sizes: tuple[tuple[float, float], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Segmentation(sizes=sizes)


def test_a_road_recipe_has_no_teacher() -> None:
    with pytest.raises(ValueError, match="distil goes with classifiers only"):
        dataclasses.replace(find_recipe("kitti-road-quaternion"), distil=0.5)


FLAT = {"label_smoothing": 0.1, "repeats": 2, "prune": 0.5, "continues": True, "entropy_weight": 0.5}
HOW = {"crops": [[0.0, 24]], "shift_pixels": 3, "flip": "random", "erase": 0.2, "scale": 0.1, "colour": 0.4}


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("cifar10-quaternion", Classification(shift_pixels=3, flip="random", erase=0.2)),
        ("kitti-road-quaternion", Segmentation(flip=True, scale=0.1, colour=0.4, entropy_weight=0.5)),
    ],
)
def test_a_flat_recipe_of_an_earlier_version_is_read(name: str, task: Classification | Segmentation) -> None:
    """What belongs to the other task, and what no recipe has any more, is left out."""
    recipe = find_recipe(name)
    data = json.loads(json.dumps(as_json(recipe)))
    for field in ("task", "teacher", "precision", "checkpoint", "gamma_decay"):
        del data[field]
    data |= FLAT | {"augmentation": HOW}
    assert from_json(data) == dataclasses.replace(recipe, task=task, teacher="", gamma_decay=0.0)


def test_a_field_that_no_recipe_ever_had_is_an_error() -> None:
    data = as_json(find_recipe("cifar10-quaternion")) | {"epoch": 3}
    with pytest.raises(ValueError, match="epoch"):
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

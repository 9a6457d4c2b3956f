"""Runs on a folder of photographs: the same as the built-in path, resumed, shared by two processes."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from quatserve.training.commands.main import main
from quatserve.training.data import cifar
from quatserve.training.data.listing import HELD_OUT, LISTING, TRAINING, read_listing
from quatserve.training.errors import UserError
from quatserve.training.evaluation.report import CONFUSION, EVALUATION
from quatserve.training.loop import run as runs
from quatserve.training.loop.batches import Examples
from quatserve.training.loop.checkpoint import read_tensors
from quatserve.training.loop.fit import fit
from quatserve.training.loop.labelled import LabelledData, class_weights
from quatserve.training.loop.ranks import Ranks
from quatserve.training.loop.sources import Source, read_data
from quatserve.training.recipes import RECIPES
from quatserve.training.recipes.schema import Classification, Recipe
from tests.training.photographs import write_photographs
from tests.training.tiny_command import TINY_CIFAR, interrupt_at, tiny_recipes

TINY_CLASSIFIER = tiny_recipes()["tiny-cifar"]
COUNTS = {"cats": 12, "dogs": 30, "emus": 4}
SMALL = ("--size", "16", "--width", "8", "--depth", "1", "--batch-size", "8", "--epochs", "2")


def train(recipe: Recipe, data: Path, run: Path) -> list[dict[str, Any]]:
    device = torch.device("cpu")
    fit(recipe, data, run, seed=3, device=device, compiled=False, resume=False, ranks=Ranks())
    return [{k: v for k, v in row.items() if k != "images_per_second"} for row in runs.read_metrics(run)]


def command(data: Path, run: Path, *more: str) -> list[str]:
    return [
        *("fit", "folder-quaternion", "--data", str(data), "--out", str(run)),
        *(*SMALL, "--compile", "off", "--device", "cpu", *more),
    ]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photographs(tmp_path_factory.mktemp("folder") / "photos", COUNTS)


@pytest.fixture(scope="module")
def finished(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "undisturbed"
    assert main(command(photos, run, "--licence", "CC0-1.0")) == 0
    return run


def write_as_folders(images: cifar.LabelledImages, folder: Path) -> None:
    """Every image as a PNG below its class, named by its index."""
    for i, (pixels, label) in enumerate(zip(images.images, images.labels, strict=True)):
        path = folder / f"class_{label}" / f"{i:05}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path)


def test_cifar_as_folders_gives_the_losses_of_the_built_in_reader(data: Path, tmp_path: Path) -> None:
    images = cifar.read_cifar(TINY_CIFAR, data, "train")
    assert len(images.labels.unique()) == 10
    write_as_folders(images, tmp_path / "folders")
    built_in = train(TINY_CLASSIFIER, data, tmp_path / "built-in")
    recipe = dataclasses.replace(TINY_CLASSIFIER, dataset="folder")
    assert train(recipe, tmp_path / "folders", tmp_path / "own") == built_in
    assert len(built_in) == 3
    ours, theirs = (read_tensors(tmp_path / run / runs.CHECKPOINT)[0] for run in ("own", "built-in"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_run_records_its_images_classes_and_licence(photos: Path, finished: Path) -> None:
    config = runs.read_config(finished)
    assert config.labels == ("cats", "dogs", "emus")
    assert config.licence == "CC0-1.0"
    assert config.recipe.network.classes == 3
    entries = read_listing(finished / LISTING)
    assert {part: sum(e.part == part for e in entries) for part in (TRAINING, HELD_OUT)} == {
        TRAINING: 39,
        HELD_OUT: 7,
    }
    assert {path.name for path in finished.iterdir()} >= {runs.CHECKPOINT, runs.CURVES, runs.BEST}
    assert len(list((finished.parent / ".image-cache").iterdir())) == 1  # decoded once


def test_an_interrupted_run_is_resumed_to_the_bit(
    photos: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its decoded images are gone and new ones have come; those that it was begun with are what counts."""
    run = tmp_path / "runs" / "mine"
    with monkeypatch.context() as patch:
        interrupt_at(6, patch.setattr)
        assert main(command(photos, run)) == 130
    added = photos / "dogs" / "zz.jpg"
    added.write_bytes((photos / "dogs" / "dogs-000.jpg").read_bytes() + b"\0")
    try:
        assert main(command(photos, run, "--resume", "--cache", str(tmp_path / "elsewhere"))) == 0
    finally:
        added.unlink()
    ours, theirs = (read_tensors(place / runs.CHECKPOINT)[0] for place in (run, finished))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert (run / LISTING).read_bytes() == (finished / LISTING).read_bytes()


def test_skipped_images_are_named_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = write_photographs(tmp_path / "photos", COUNTS)
    (photos / "cats" / "note.txt").write_bytes(b"hello")
    assert main(command(photos, tmp_path / "run", "--epochs", "1")) == 0
    shown = capsys.readouterr().err
    assert "39 training, 7 held-out images; 1 skipped:" in shown
    assert "  cats/note.txt: the data does not begin like an image" in shown


def test_a_run_does_not_begin_with_one_that_saw_what_it_holds_out(
    photos: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ("--from", str(finished))
    assert main(command(photos, tmp_path / "same", *start, "--epochs", "1")) == 0
    assert main(command(photos, tmp_path / "more", *start, "--set", "held_share=0.4")) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"error: {finished} was trained on " in error
    assert "which this run holds out" in error


def labelled(counts: list[int], **how: Any) -> LabelledData:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    images = torch.zeros(len(labels), 3, 32, 32, dtype=torch.uint8)
    task = dataclasses.replace(Classification(), **how)
    network = dataclasses.replace(TINY_CLASSIFIER.network, classes=len(counts))
    recipe = dataclasses.replace(TINY_CLASSIFIER, task=task, network=network)
    empty = Examples(images[:0], labels[:0])
    return LabelledData(recipe, Examples(images, labels), empty)


def test_balanced_drawing_shows_rare_classes_as_often(photos: Path) -> None:
    drawn = {}
    for balance in ("none", "draw"):
        source = labelled([320, 80], balance=balance)
        truth = torch.cat([b.truth for number in range(5) for b in source.epoch(number, 0).batches])
        drawn[balance] = truth.float().mean().item()
        assert len(truth) == 2000
    assert drawn["none"] == pytest.approx(0.2)
    assert drawn["draw"] == pytest.approx(0.5, abs=0.04)


def test_weighted_classes_count_as_much_in_the_loss() -> None:
    """With equal logits the loss is the same; its gradient no longer leans to the common class."""
    for balance, pull in (("none", 0.3), ("weights", 0.0)):
        source = labelled([320, 80], balance=balance)
        logits = torch.zeros(400, 2, requires_grad=True)
        batch = next(source.epoch(0, 0).batches)._replace(truth=source.train.truth)
        loss = source.loss(logits, batch)
        assert loss.item() == pytest.approx(torch.tensor(2.0).log().item())
        (gradient,) = torch.autograd.grad(loss, logits)
        assert gradient.sum(0)[1].item() == pytest.approx(pull, abs=1e-6)


def test_weights_are_one_where_classes_are_equal() -> None:
    assert torch.equal(class_weights(torch.tensor([0, 1, 2, 0, 1, 2]), 3), torch.ones(3))


def test_random_crops_vary_from_epoch_to_epoch_and_validation_stays(photos: Path, tmp_path: Path) -> None:
    network = dataclasses.replace(TINY_CLASSIFIER.network, classes=3)
    recipe = dataclasses.replace(
        RECIPES["folder-quaternion"](), network=network, height=16, width=16, batch_size=39
    )
    source = read_data(recipe, Source(photos, tmp_path / "run"))
    first, second = (next(source.epoch(number, 0).batches).inputs for number in (0, 1))
    assert first.shape == second.shape == (39, 3, 16, 16)
    assert not torch.equal(first.sort(0)[0], second.sort(0)[0])
    held = [source.validation() for _ in range(2)]
    assert held[0] is not None
    assert held[1] is not None
    assert torch.equal(next(held[0]).inputs, next(held[1]).inputs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "task.crop=2"], "task.crop = 2: Input should be less than or equal to 1"),
        (["--set", "crop=0.5"], "no such field; did you mean task.crop?"),
        (["--set", "task.cropp=0.5"], "no such field; use one of summary, network.algebra, "),
        (["--set", "epochs"], "'epochs' is no assignment: write NAME=VALUE"),
        (["--set", "network.width=wide"], "network.width = 'wide': Input should be a valid integer"),
        (["--set", "batch_size=-4"], "batch_size = -4: Input should be greater than 0"),
        (
            ["--width", "30"],
            "30 channels cannot be split into quaternion numbers: use a positive ",
        ),
        (["--lr", "-1"], "schedule.peak = -1.0: Input should be greater than 0"),
        (["--size", "4"], "--size: '4' is no size: give pixels from 8 to 2,048, as 128 or as 96x320"),
        (["--batch-size", "64"], "39 training images are fewer than one batch of 64"),
    ],
)
def test_a_bad_option_names_field_value_and_bound(
    photos: Path, tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(command(photos, tmp_path / "run", *options))
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert message in error


def test_options_change_the_recipe_and_the_rate_follows_the_batch(photos: Path, finished: Path) -> None:
    recipe = json.loads((finished / runs.CONFIG).read_text())["recipe"]
    assert (recipe["height"], recipe["width"], recipe["epochs"], recipe["batch_size"]) == (16, 16, 2, 8)
    assert (recipe["network"]["width"], recipe["network"]["depth"]) == (8, 1)
    before = RECIPES["folder-quaternion"]()
    assert recipe["schedule"]["peak"] == pytest.approx(
        before.schedule.highest * (8 / before.batch_size) ** 0.5
    )


def test_a_renamed_class_is_another_run(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    renamed = {f"{name}-{i}": count for i, (name, count) in enumerate(COUNTS.items())}
    photos = write_photographs(tmp_path / "photos", renamed)
    assert main(command(photos, finished, "--resume")) == 2
    assert "labels: ('cats', 'dogs', 'emus') -> ('cats-0', 'dogs-1', 'emus-2')" in capsys.readouterr().err


def test_a_damaged_list_of_images_is_named(photos: Path, finished: Path, tmp_path: Path) -> None:
    (tmp_path / LISTING).write_text("a\tb\n")
    with pytest.raises(UserError, match=rf"{LISTING} is no list of images"):
        read_data(runs.read_config(finished).recipe, Source(photos, tmp_path))


def evaluated(run: Path, data: Path, *options: str) -> dict[str, Any]:
    assert main(["evaluate", str(run), "--data", str(data), "--device", "cpu", *options]) == 0
    report: dict[str, Any] = json.loads((run / EVALUATION).read_text())
    return report


def test_a_run_is_scored_on_what_it_held_out(photos: Path, finished: Path) -> None:
    """As the last epoch was: the same images, the same average."""
    report = evaluated(finished, photos)
    assert report["split"] == HELD_OUT
    assert report["scores"]["images"] == 7
    assert report["scores"]["error"] == runs.read_metrics(finished)[-1]["validation_score"]
    confusion = torch.tensor(report["scores"]["confusion"])
    assert confusion.sum(1).tolist() == [2, 4, 1]
    assert (finished / CONFUSION).is_file()
    assert not list(finished.glob(".evaluated*"))


def test_a_run_is_scored_on_another_folder(finished: Path, tmp_path: Path) -> None:
    """Which need not have every class, and may have more than the usual trouble."""
    other = write_photographs(tmp_path / "other", {"dogs": 3, "emus": 5}, seed=77)
    (other / "dogs" / "bad.jpg").write_bytes(b"x")
    report = evaluated(finished, other, "--split", "all")
    assert torch.tensor(report["scores"]["confusion"]).sum(1).tolist() == [0, 3, 5]
    assert evaluated(finished, other, "--split", "all")["scores"] == report["scores"]


@pytest.mark.parametrize(
    ("classes", "options", "message"),
    [
        ({"cats": 2, "dogs": 2}, [], "has none of the run's 7 held-out images"),
        (
            {"cats": 2, "newts": 2},
            ["--split", "all"],
            "newts is no class of the run: it knows cats, dogs, emus",
        ),
        ({"cats": 2, "dogs": 2}, ["--split", "test"], "folder-quaternion has no split 'test'"),
    ],
)
def test_a_folder_that_cannot_be_scored_is_refused(
    finished: Path,
    tmp_path: Path,
    classes: dict[str, int],
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = tmp_path / "other"
    write_photographs(other, {f"{name}": count for name, count in classes.items()}, seed=500)
    for name in classes:
        for path in (other / name).iterdir():
            path.rename(path.with_name(f"other-{path.name}"))
    assert main(["evaluate", str(finished), "--data", str(other), "--device", "cpu", *options]) == 2
    assert message in capsys.readouterr().err

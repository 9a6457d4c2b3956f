"""What a run learns from a teacher, and which teachers it may have."""

import dataclasses
import hashlib
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from quatserve.training.commands.main import main
from quatserve.training.data.cifar import LabelledImages
from quatserve.training.errors import UserError
from quatserve.training.loop import run as runs
from quatserve.training.loop.batches import Batch, CifarData
from quatserve.training.loop.checkpoint import read_tensors, write_tensors
from quatserve.training.loop.distillation import TEMPERATURE, ask, divergences
from quatserve.training.loop.fit import fit
from quatserve.training.loop.prediction import Images, predictor
from quatserve.training.loop.ranks import Ranks
from quatserve.training.loop.trainer import Trainer
from quatserve.training.recipes.schedule import OneCycle
from quatserve.training.recipes.schema import Recipe
from tests.training.tiny_command import interrupt_at, tiny_recipes
from tests.training.tiny_data import write_run

PLAIN = tiny_recipes()["tiny-cifar"]
TAUGHT = dataclasses.replace(tiny_recipes()["tiny-taught"], prune=0.5)


@pytest.fixture(scope="module")
def teacher(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another algebra of another width."""
    run = tmp_path_factory.mktemp("runs") / "teacher"
    wide = dataclasses.replace(PLAIN.network, algebra="real", width=12)
    train(data, run, recipe=dataclasses.replace(PLAIN, name="tiny-wide", network=wide, epochs=2))
    return run


def train(data: Path, run: Path, *, recipe: Recipe = TAUGHT, resume: bool = False, **sources: Path) -> None:
    device = torch.device("cpu")
    fit(recipe, data, run, seed=0, device=device, compiled=False, resume=resume, ranks=Ranks(), **sources)


def brightness(images: Images) -> Any:
    """A teacher of two classes that looks at the left half of a picture only."""
    dark = 1 - images[:, :, :16].mean((1, 2, 3)) / 255
    return np.stack([dark, 1 - dark], 1).astype(np.float32)


def test_a_teacher_is_asked_about_both_views() -> None:
    images = torch.zeros(600, 3, 32, 32, dtype=torch.uint8)
    images[1, :, :, 16:] = 255
    images[599] = 255
    answers = ask(brightness, images, progress=False)
    assert answers.shape == (600, 2)
    torch.testing.assert_close(answers.exp()[[0, 1, 599]], torch.tensor([[1, 0], [0.5, 0.5], [0, 1.0]]))
    assert answers.isfinite().all()


def test_the_divergence_is_that_of_softened_answers() -> None:
    ours, theirs = torch.tensor([[4.0, 0.0]]), torch.tensor([[0.0, 8.0]])
    p, q = (math.exp(x) / (1 + math.exp(x)) for x in (8 / TEMPERATURE, -4 / TEMPERATURE))
    expected = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    torch.testing.assert_close(divergences(ours, theirs), torch.tensor([TEMPERATURE**2 * expected]))
    assert divergences(theirs + 3, theirs).item() == pytest.approx(0, abs=1e-6)


def test_its_gradient_is_as_large_as_that_of_labels() -> None:
    """Near uniform answers both are the difference of the logits, divided by the number of classes."""
    generator = torch.Generator().manual_seed(0)
    theirs = torch.randn(64, 10, generator=generator, dtype=torch.double) / 10
    ours = torch.zeros(64, 10, dtype=torch.double, requires_grad=True)
    (soft,) = torch.autograd.grad(divergences(ours, theirs).sum(), ours)
    (hard,) = torch.autograd.grad(F.cross_entropy(ours, theirs.softmax(1), reduction="sum"), ours)
    torch.testing.assert_close(soft, hard, rtol=0.1, atol=1e-3)


def test_the_loss_mixes_labels_and_answers_and_what_is_remembered_is_the_mixture(data: Path) -> None:
    source = CifarData(TAUGHT, data)
    generator = torch.Generator().manual_seed(0)
    logits, answers = torch.randn(2, 3, 10, generator=generator)
    labels, index = torch.tensor([1, 2, 3]), torch.tensor([7, 30, 5])
    batch = Batch(torch.empty(0), labels, index, torch.tensor([2.0, 1.0, 2.0]), answers)
    each = 0.1 * F.cross_entropy(logits, labels, reduction="none") + 0.9 * divergences(logits, answers)
    torch.testing.assert_close(source.loss(logits, batch), (2 * each[0] + each[1] + 2 * each[2]) / 5)
    assert source.pruning is not None
    torch.testing.assert_close(source.pruning.losses[index], each)


def test_every_image_comes_with_the_answer_to_it(data: Path) -> None:
    def counting(images: Images) -> Any:
        """No two images have the same answer, but an image and its mirror image have."""
        level = images.mean((1, 2, 3))[:, None] / 255
        return np.concatenate([level, (1 - level) / 9 * np.ones((1, 9))], 1).astype(np.float32)

    source = CifarData(TAUGHT, data)
    source.ask(counting, progress=False)
    own = torch.from_numpy(counting(source.train.images.permute(0, 2, 3, 1).numpy())).log()
    for batch in source.epoch(0, 0).batches:
        assert batch.which is not None
        torch.testing.assert_close(batch.answers, own[batch.which])


def test_a_student_comes_to_answer_as_its_teacher_does(data: Path) -> None:
    """About each image, where the labels, all of one class, say nothing and weigh nothing."""

    def by_brightness(images: Images) -> Any:
        probabilities = np.full((len(images), 10), 0.01, np.float32)
        probabilities[np.arange(len(images)), (images.mean((1, 2, 3)) > 127).astype(int)] = 0.91
        return probabilities

    recipe = dataclasses.replace(TAUGHT, distil=1.0, prune=0.0, epochs=10, schedule=OneCycle(peak=0.1))
    source = CifarData(recipe, data)
    levels = torch.linspace(0, 255, len(source.train)).to(torch.uint8).reshape(-1, 1, 1, 1)
    source.train = LabelledImages(levels.repeat(1, 3, 32, 32), torch.full((len(levels),), 5))
    source.ask(by_brightness, progress=False)
    trainer = Trainer(recipe, 0, source, torch.device("cpu"), compiled=False, ranks=Ranks())
    for epoch in range(recipe.epochs):
        trainer.train_epoch(epoch, lambda *_: None)
    assert source.answers is not None
    answers = ask(predictor(trainer.evaluated, torch.device("cpu")), source.train.images, progress=False)
    agree = (answers.argmax(1) == source.answers.argmax(1)).float().mean().item()
    assert agree > 0.8


def test_answers_that_are_no_numbers_are_refused(data: Path, teacher: Path, tmp_path: Path) -> None:
    shutil.copytree(teacher, tmp_path / "damaged")
    tensors, meaning = read_tensors(teacher / runs.CHECKPOINT)
    tensors["head.2.bias"][3] = torch.inf
    write_tensors(tmp_path / "damaged" / runs.CHECKPOINT, tensors, meaning)
    with pytest.raises(UserError, match="the teacher's answers are not finite"):
        train(data, tmp_path / "run", teacher=tmp_path / "damaged")


def test_a_taught_run_remembers_its_teacher_and_resumes_without_it(
    data: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first epoch there is no state yet, and the teacher is needed again."""
    train(data, tmp_path / "whole", teacher=teacher)
    config = runs.read_config(tmp_path / "whole")
    digest = hashlib.sha256((teacher / runs.CHECKPOINT).read_bytes()).hexdigest()
    assert config.teacher == runs.FinishedRun(runs.read_config(teacher), digest)
    for stop in (2, 7):
        run, gone = tmp_path / f"stopped-{stop}", tmp_path / f"teacher-{stop}"
        shutil.copytree(teacher, gone)
        with monkeypatch.context() as patch:
            interrupt_at(stop, patch.setattr)
            with pytest.raises(KeyboardInterrupt):
                train(data, run, teacher=gone)
        shutil.rmtree(gone)
        if stop == 2:
            with pytest.raises(UserError, match=r"another configuration .*teacher: .* and --teacher, or"):
                train(data, run, resume=True)
            train(data, run, resume=True, teacher=teacher)
        else:
            train(data, run, resume=True)
        assert runs.read_config(run).teacher == config.teacher
        for name in (runs.STATE, runs.CHECKPOINT):
            ours, theirs = (read_tensors(where / name)[0] for where in (run, tmp_path / "whole"))
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_another_teacher_is_another_run(data: Path, teacher: Path, tmp_path: Path) -> None:
    train(data, tmp_path / "run", teacher=teacher)
    train(data, tmp_path / "other", recipe=PLAIN)
    with pytest.raises(UserError, match=r"another configuration .*teacher:"):
        train(data, tmp_path / "run", teacher=tmp_path / "other", resume=True)


def test_a_finished_run_needs_neither_teacher_nor_state(
    data: Path, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(data, tmp_path / "run", teacher=teacher)
    (tmp_path / "run" / runs.STATE).unlink()
    train(data, tmp_path / "run", resume=True)
    assert "is finished: its 3 epochs are done" in capsys.readouterr().err


def test_a_teacher_that_cannot_be_is_refused(data: Path, teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tiny-taught learns from a teacher"):
        train(data, tmp_path / "run")
    with pytest.raises(UserError, match="tiny-cifar learns from no teacher: leave out --teacher"):
        train(data, tmp_path / "run", recipe=PLAIN, teacher=teacher)
    few = dataclasses.replace(PLAIN, network=dataclasses.replace(PLAIN.network, classes=2))
    others = {"road": tiny_recipes()["tiny-road"], "few": few}
    others["cifar100"] = dataclasses.replace(PLAIN, dataset="cifar100", network=PLAIN.network)
    for name, other in others.items():
        write_run(tmp_path / name, other)
        with pytest.raises(UserError, match="cannot teach tiny-taught: it was trained for other classes"):
            train(data, tmp_path / "run", teacher=tmp_path / name)
    (tmp_path / "unfinished").mkdir()
    shutil.copy(teacher / runs.CONFIG, tmp_path / "unfinished")
    with pytest.raises(UserError, match="is missing: --teacher takes a finished run"):
        train(data, tmp_path / "run", teacher=tmp_path / "unfinished")
    assert not (tmp_path / "run" / runs.CONFIG).exists()


def test_a_teacher_that_saw_what_is_held_out_is_refused(data: Path, teacher: Path, tmp_path: Path) -> None:
    """It would tell. Nor may it have begun with, or learned from, one that saw it."""
    write_run(tmp_path / "saw", dataclasses.replace(PLAIN, holdout=0))
    saw = runs.FinishedRun(runs.read_config(tmp_path / "saw"), "")
    for way in ("start", "teacher"):
        shutil.copytree(teacher, tmp_path / way)
        told = dataclasses.replace(runs.read_config(teacher), **{way: saw})  # type: ignore[arg-type]
        runs.write_config(tmp_path / way, told)
    for name in ("saw", "start", "teacher"):
        with pytest.raises(UserError, match="was trained on images that tiny-taught holds out"):
            train(data, tmp_path / "run", teacher=tmp_path / name)
    with pytest.raises(UserError, match="was trained on images that tiny-cifar holds out"):
        train(data, tmp_path / "run", recipe=PLAIN, start=tmp_path / "teacher")


def test_the_command_takes_a_teacher(
    data: Path, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--data", str(data), "--out", str(tmp_path / "run"), "--compile", "off", "--device", "cpu"]
    assert main(["fit", TAUGHT.name, *where, "--teacher", str(teacher)]) == 0
    assert "epoch 3/3" in capsys.readouterr().err
    assert runs.read_config(tmp_path / "run").teacher is not None

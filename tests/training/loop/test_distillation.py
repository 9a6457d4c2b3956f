"""What a run learns from a teacher, and which teachers it may have."""

import dataclasses
import hashlib
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from quatserve.training import recipes
from quatserve.training.commands.main import main
from quatserve.training.data.augment import normalise
from quatserve.training.errors import UserError
from quatserve.training.loop import distillation
from quatserve.training.loop import run as runs
from quatserve.training.loop.batches import Batch, Examples
from quatserve.training.loop.checkpoint import read_tensors, write_tensors
from quatserve.training.loop.distillation import TEMPERATURE, OnlineTeacher, divergences, has_fast_bf16
from quatserve.training.loop.fit import fit
from quatserve.training.loop.labelled import LabelledData
from quatserve.training.loop.ranks import Ranks
from quatserve.training.loop.sources import Source, read_data
from quatserve.training.loop.trainer import Trainer
from quatserve.training.networks.residual import Network
from quatserve.training.recipes.schedule import OneCycle
from quatserve.training.recipes.schema import Classification, Recipe
from tests.training.tiny_command import interrupt_at, tiny_recipes
from tests.training.tiny_data import write_run

PLAIN = tiny_recipes()["tiny-cifar"]
TAUGHT = tiny_recipes()["tiny-taught"]


@pytest.fixture(scope="module")
def teacher(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another algebra of another width."""
    run = tmp_path_factory.mktemp("runs") / "teacher"
    wide = dataclasses.replace(PLAIN.paper_network, algebra="real", width=12)
    train(data, run, recipe=dataclasses.replace(PLAIN, name="tiny-wide", network=wide, epochs=2))
    return run


def train(data: Path, run: Path, *, recipe: Recipe = TAUGHT, resume: bool = False, **sources: Any) -> None:
    device = torch.device("cpu")
    fit(recipe, data, run, seed=0, device=device, compiled=False, resume=resume, ranks=Ranks(), **sources)


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


def test_the_loss_mixes_labels_and_answers(data: Path) -> None:
    source = read_data(TAUGHT, Source(data))
    logits, answers = torch.randn(2, 3, 10, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([1, 2, 3])
    expected = 0.1 * F.cross_entropy(logits, labels) + 0.9 * divergences(logits, answers).mean()
    torch.testing.assert_close(source.loss(logits, Batch(torch.empty(0), labels, answers)), expected)


class Brightness(nn.Module):
    """A teacher that knows whether the left half of an image is bright, and keeps what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[torch.Tensor] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.shown.append(inputs.clone())
        bright = inputs[..., :16].mean((1, 2, 3)) > 0
        return 4 * F.one_hot(bright.long(), 10).float()


def online(network: nn.Module) -> OnlineTeacher:
    return OnlineTeacher(network, torch.device("cpu"), compiled=False)


def test_the_teacher_answers_about_the_very_batch_that_the_student_sees(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same shifts and flips: the inputs of both are equal to the bit."""
    brightness, seen = Brightness(), []
    source = read_data(TAUGHT, Source(data))
    trainer = Trainer(
        TAUGHT, 0, source, torch.device("cpu"), compiled=False, ranks=Ranks(), teacher=online(brightness)
    )
    trainer.network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    trainer.train_epoch(0, lambda *_: None)
    assert len(seen) == len(brightness.shown) == 5
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(seen, brightness.shown, strict=True))


def test_a_student_comes_to_answer_as_its_teacher_does(data: Path) -> None:
    """About each image, where the labels, all of one class, say nothing and weigh nothing."""
    unchanged = Classification(flip="none", shift_pixels=0)
    recipe = dataclasses.replace(TAUGHT, distil=1.0, epochs=10, schedule=OneCycle(peak=0.1), task=unchanged)
    source = read_data(recipe, Source(data))
    assert isinstance(source, LabelledData)
    levels = torch.linspace(0, 255, len(source.train.truth)).to(torch.uint8).reshape(-1, 1, 1, 1)
    source.train = Examples(levels.repeat(1, 3, 32, 32), torch.full((len(levels),), 5))
    teacher = online(Brightness())
    trainer = Trainer(recipe, 0, source, torch.device("cpu"), compiled=False, ranks=Ranks(), teacher=teacher)
    for epoch in range(recipe.epochs):
        trainer.train_epoch(epoch, lambda *_: None)
    images = normalise(source.train.images)
    agree = trainer.evaluated(images).argmax(1) == teacher(images).argmax(1)
    assert agree.float().mean().item() > 0.8


def test_a_teacher_in_bf16_answers_as_it_does_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(PLAIN.paper_network).eval()
    images = normalise(torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8))
    monkeypatch.setattr(distillation, "has_fast_bf16", lambda _: True)
    ours = online(network)(images)
    with torch.no_grad():
        exact = network(images)
    assert ours.dtype == torch.float32
    assert not torch.equal(ours, exact)
    torch.testing.assert_close(ours, exact, rtol=0.05, atol=0.05)
    assert not ours.requires_grad


@pytest.mark.parametrize("fast", [False, True])
def test_bf16_is_for_processors_that_multiply_in_it(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True} if fast else {})
    assert has_fast_bf16(torch.device("cpu")) is fast


def test_a_damaged_teacher_is_refused(data: Path, teacher: Path, tmp_path: Path) -> None:
    shutil.copytree(teacher, tmp_path / "damaged")
    tensors, meaning = read_tensors(teacher / runs.CHECKPOINT)
    tensors["head.2.bias"][3] = torch.inf
    write_tensors(tmp_path / "damaged" / runs.CHECKPOINT, tensors, meaning)
    with pytest.raises(UserError, match=r"head\.2\.bias holds numbers that are not finite"):
        train(data, tmp_path / "run", teacher=tmp_path / "damaged")
    (tmp_path / "damaged" / runs.CHECKPOINT).write_bytes(b"nothing")
    with pytest.raises(UserError, match="is damaged"):
        train(data, tmp_path / "run", teacher=tmp_path / "damaged")
    assert not (tmp_path / "run" / runs.CONFIG).exists()


def test_a_taught_run_records_its_teacher_and_resumes_with_it(
    data: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(data, tmp_path / "whole", teacher=teacher)
    config = runs.read_config(tmp_path / "whole")
    digest = hashlib.sha256((teacher / runs.CHECKPOINT).read_bytes()).hexdigest()
    assert config.teacher == runs.FinishedRun(runs.read_config(teacher), digest)
    for stop in (2, 7):
        run = tmp_path / f"stopped-{stop}"
        with monkeypatch.context() as patch:
            interrupt_at(stop, patch.setattr)
            with pytest.raises(KeyboardInterrupt):
                train(data, run, teacher=teacher)
        train(data, run, resume=True, teacher=teacher)
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


def test_a_finished_run_needs_no_state(
    data: Path, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(data, tmp_path / "run", teacher=teacher)
    (tmp_path / "run" / runs.STATE).unlink()
    train(data, tmp_path / "run", resume=True, teacher=teacher)
    assert "is finished: its 3 epochs are done" in capsys.readouterr().err


def test_a_teacher_that_cannot_be_is_refused(data: Path, teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tiny-taught learns from a teacher"):
        train(data, tmp_path / "run")
    with pytest.raises(UserError, match="tiny-cifar learns from no teacher: leave out --teacher"):
        train(data, tmp_path / "run", recipe=PLAIN, teacher=teacher)
    few = dataclasses.replace(PLAIN, network=dataclasses.replace(PLAIN.paper_network, classes=2))
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


def test_a_recipe_finds_its_teacher_in_runs(
    data: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = dataclasses.replace(TAUGHT, teacher="tiny-wide")
    with pytest.raises(UserError, match=r"holds none: name one with --teacher, or train it: quatserve fit"):
        runs.find_teacher(recipe)
    shutil.copytree(teacher, tmp_path / "runs" / "tiny-wide")
    assert runs.find_teacher(recipe) == Path("runs", "tiny-wide")
    monkeypatch.setitem(recipes.RECIPES, TAUGHT.name, lambda: recipe)
    where = ["--data", str(data), "--out", str(tmp_path / "run"), "--compile", "off", "--device", "cpu"]
    assert main(["fit", TAUGHT.name, *where]) == 0
    assert runs.read_config(tmp_path / "run").teacher is not None


def test_a_checkpoint_in_fp16_is_half_as_large_and_loads(data: Path, teacher: Path, tmp_path: Path) -> None:
    half = dataclasses.replace(runs.read_config(teacher).recipe, checkpoint="fp16")
    train(data, tmp_path / "half", recipe=half)
    small, large = (read_tensors(run / runs.CHECKPOINT)[0] for run in (tmp_path / "half", teacher))
    assert {tensor.dtype for tensor in small.values()} == {torch.float16}
    assert all(torch.equal(small[name], tensor.half()) for name, tensor in large.items())
    network, _ = runs.load_network(tmp_path / "half")
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}

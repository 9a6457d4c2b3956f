"""Runs that are stopped, killed or interrupted while saving, against the run that never was: bit for bit."""

import dataclasses
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from quatserve.training.commands.main import main
from quatserve.training.data.augment import normalise
from quatserve.training.errors import UserError
from quatserve.training.loop import run as runs
from quatserve.training.loop.checkpoint import read_tensors, write_tensors
from quatserve.training.loop.fit import fit
from quatserve.training.loop.ranks import Ranks
from quatserve.training.loop.sources import Source, read_data
from quatserve.training.recipes.schedule import OneCycle
from quatserve.training.recipes.schema import Classification, Recipe
from tests.training.tiny_command import interrupt_at, tiny_recipes
from tests.training.tiny_data import road_recipe, write_frames, write_run

RECIPE = tiny_recipes()["tiny-cifar"]
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "undisturbed"
    train(data, run)
    return run


def train(
    data: Path,
    run: Path,
    *,
    recipe: Recipe = RECIPE,
    seed: int = 0,
    resume: bool = False,
    start: Path | None = None,
) -> None:
    device = torch.device("cpu")
    fit(
        recipe, data, run, seed=seed, device=device, compiled=False, resume=resume, ranks=Ranks(), start=start
    )


def rows_of(run: Path) -> list[dict[str, Any]]:
    """The metrics, but for how long it took."""
    return [{k: v for k, v in row.items() if k != "images_per_second"} for row in runs.read_metrics(run)]


def assert_same_run(ours: Path, theirs: Path) -> None:
    for name in (runs.STATE, runs.CHECKPOINT, runs.BEST):
        (mine, meaning), (other, _) = read_tensors(ours / name), read_tensors(theirs / name)
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[key], other[key]) for key in mine), name
        if name == runs.STATE:
            assert meaning["step"] == 15
    assert rows_of(ours) == rows_of(theirs)
    assert not list(ours.glob("*.part"))


def test_a_run_directory_holds_what_it_promises(undisturbed: Path) -> None:
    expected = {runs.CONFIG, runs.METRICS, runs.STATE, runs.CHECKPOINT, runs.BEST, runs.CURVES}
    assert {path.name for path in undisturbed.iterdir()} == expected
    rows = runs.read_metrics(undisturbed)
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    numbers = {"epoch", "images", "loss", "score", "rate", "clipped"}
    numbers |= {"images_per_second", "validation_score"}
    assert set(rows[0]) == numbers
    network, config = runs.load_network(undisturbed)
    assert config.seed == 0
    assert network.config == RECIPE.network


def test_the_checkpoint_is_the_moving_average(undisturbed: Path) -> None:
    state, _ = read_tensors(undisturbed / runs.STATE)
    weights, meaning = read_tensors(undisturbed / runs.CHECKPOINT)
    assert meaning["epoch"] == 3
    assert all(torch.equal(value, state[f"average.{name}"]) for name, value in weights.items())
    assert not torch.equal(weights["stem.weight"], state["network.stem.weight"])


def test_the_best_weights_are_those_of_the_best_epoch(undisturbed: Path) -> None:
    scores = [row["validation_score"] for row in rows_of(undisturbed)]
    _, meaning = read_tensors(undisturbed / runs.BEST)
    assert scores[meaning["epoch"] - 1] == min(scores)


def test_without_a_held_out_split_there_is_no_best(data: Path, tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, holdout=0, epochs=1, ema_decay=0.0)
    train(data, tmp_path / "run", recipe=recipe)
    assert not (tmp_path / "run" / runs.BEST).exists()
    state, _ = read_tensors(tmp_path / "run" / runs.STATE)
    weights, _ = read_tensors(tmp_path / "run" / runs.CHECKPOINT)
    assert all(torch.equal(value, state[f"network.{name}"]) for name, value in weights.items())


def test_the_seed_decides_everything(data: Path, undisturbed: Path, tmp_path: Path) -> None:
    torch.rand(5)  # the state of the global generator does not matter
    train(data, tmp_path / "again")
    assert_same_run(tmp_path / "again", undisturbed)
    train(data, tmp_path / "other", seed=1)
    ours, theirs = (read_tensors(run / runs.CHECKPOINT)[0] for run in (tmp_path / "other", undisturbed))
    assert not torch.equal(ours["stem.weight"], theirs["stem.weight"])


@pytest.mark.parametrize("name", ["tiny-cifar", "tiny-road"])
def test_an_epoch_draws_from_its_own_generator_only(data: Path, name: str) -> None:
    """Global state before: without influence. Global state after: as before. The number decides the epoch."""
    source = read_data(tiny_recipes()[name], Source(data))

    def epoch(number: int, seed: int = 0) -> list[torch.Tensor]:
        return [part for batch in source.epoch(number, seed).batches for part in batch if part is not None]

    torch.manual_seed(1)
    first, state = epoch(1), torch.get_rng_state()
    torch.manual_seed(2)
    assert all(torch.equal(a, b) for a, b in zip(first, epoch(1), strict=True))
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)
    assert not all(torch.equal(a, b) for a, b in zip(first, epoch(2), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, epoch(1, seed=1), strict=True))


def test_a_recipe_that_erases_trains_with_it_and_scores_without(data: Path) -> None:
    recipe = tiny_recipes()["tiny-cifar"]
    seen = {}
    for erase in (0.0, 0.5):
        source = read_data(
            dataclasses.replace(recipe, task=Classification(flip="none", shift_pixels=0, erase=erase)),
            Source(data),
        )
        held_out = source.validation()
        assert held_out is not None
        seen[erase] = [torch.cat([b.inputs for b in part]) for part in (source.epoch(0, 0).batches, held_out)]
    changed = seen[0.5][0] != seen[0.0][0]
    assert torch.equal(seen[0.5][0][changed].unique(), normalise(torch.full((1, 3, 1, 1), 128)).unique())
    assert changed.flatten(1).any(1).all()
    assert torch.equal(seen[0.5][1], seen[0.0][1])


@pytest.mark.parametrize("step", [0, 7, 14])
def test_an_interrupted_epoch_is_run_again(
    data: Path, undisturbed: Path, tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at(step, monkeypatch.setattr)
    with pytest.raises(KeyboardInterrupt):
        train(data, tmp_path / "run")
    train(data, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", undisturbed)


@pytest.mark.parametrize("write", range(12))
def test_an_interrupted_save_loses_at_most_its_epoch(
    data: Path, undisturbed: Path, tmp_path: Path, write: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's files are written one after the other; every one of these moments may be the last."""
    sync, count = os.fsync, iter(range(1000))

    def interrupted(descriptor: int) -> None:
        if next(count) == write:
            raise KeyboardInterrupt
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", interrupted)
    try:
        train(data, tmp_path / "run")
    except KeyboardInterrupt:
        assert not list((tmp_path / "run").glob("*.part"))
        train(data, tmp_path / "run", resume=True)
    else:
        pytest.fail(f"a run has fewer than {write + 1} writes: {next(count)}")
    assert_same_run(tmp_path / "run", undisturbed)
    assert (tmp_path / "run" / runs.CURVES).exists()


@pytest.mark.parametrize(
    ("accident", "sign"),
    [("pause 1 2", signal.SIGKILL), ("pause 1 2", signal.SIGINT), ("pause-saving 1", signal.SIGKILL)],
)
def test_a_stopped_process_is_resumed(
    data: Path, undisturbed: Path, tmp_path: Path, accident: str, sign: signal.Signals
) -> None:
    run, paused = tmp_path / "run", tmp_path / "paused"
    command = [sys.executable, "-m", "tests.training.tiny_command", "fit", "tiny-cifar", "--compile", "off"]
    command += ["--data", str(data), "--out", str(run)]
    environment = os.environ | {"ACCIDENT": accident, "PAUSED": str(paused)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        while not paused.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(sign)
        errors = process.communicate()[1]
    assert paused.exists(), errors
    if sign == signal.SIGINT:
        assert process.returncode == 130
        assert errors.splitlines()[-1] == "stopped: --resume goes on from the last finished epoch"
    else:
        assert process.returncode == -signal.SIGKILL
    assert read_tensors(run / runs.STATE)[1]["step"] == 5
    train(data, run, resume=True)
    for left in run.glob("*.part"):
        pytest.fail(f"{left} was left behind")
    assert_same_run(run, undisturbed)


def test_resuming_a_finished_run_says_so(
    data: Path, undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in undisturbed.iterdir()}
    train(data / "not needed", undisturbed, resume=True)
    assert capsys.readouterr().err == f"{undisturbed} is finished: its 3 epochs are done\n"
    assert {path: path.stat().st_mtime_ns for path in undisturbed.iterdir()} == before


def test_resuming_nothing_starts(data: Path, undisturbed: Path, tmp_path: Path) -> None:
    train(data, tmp_path / "new" / "run", resume=True)
    assert_same_run(tmp_path / "new" / "run", undisturbed)


def test_a_run_is_not_overwritten(data: Path, undisturbed: Path) -> None:
    with pytest.raises(UserError, match="holds a run already: add --resume"):
        train(data, undisturbed)
    with pytest.raises(UserError, match=r"another configuration .*seed: 0 -> 1"):
        train(data, undisturbed, seed=1, resume=True)


def git(directory: Path, *arguments: str) -> None:
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    subprocess.run(["git", *who, *arguments], cwd=directory, check=True, capture_output=True)


def test_the_recorded_commit_is_that_of_the_package_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "training"
    package.mkdir()
    monkeypatch.setattr(runs, "__file__", str(package / "run.py"))
    assert runs.current_commit() == "unknown"  # no repository
    if shutil.which("git") is None:  # nor any other
        return
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "--message", "another project's")
    (package / "run.py").write_text("one")
    assert runs.current_commit() == "unknown"  # a repository that does not know the package
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--message", "the package")
    (tmp_path / "mask.png").write_bytes(b"an answer of the service")
    clean = runs.current_commit()
    assert re.fullmatch("[0-9a-f]{12}", clean)
    (package / "run.py").write_text("two")
    assert runs.current_commit() == f"{clean}-modified"


def still(**changes: Any) -> Recipe:
    """Training at a rate of nothing, one epoch: it ends with the weights that it began with."""
    return dataclasses.replace(
        RECIPE, epochs=1, schedule=OneCycle(peak=1e-30), weight_decay=0.0, kernel_rate=0.0, **changes
    )


def test_a_run_can_begin_with_the_weights_of_another(data: Path, undisturbed: Path, tmp_path: Path) -> None:
    train(data, tmp_path / "run", recipe=still(), start=undisturbed)
    before, _ = runs.load_network(undisturbed)
    after, config = runs.load_network(tmp_path / "run")
    for name, parameter in before.named_parameters():
        torch.testing.assert_close(after.get_parameter(name), parameter, rtol=1e-6, atol=1e-7)
    digest = hashlib.sha256((undisturbed / runs.CHECKPOINT).read_bytes()).hexdigest()
    assert config.start == runs.FinishedRun(runs.read_config(undisturbed), digest)


def test_a_road_network_can_begin_with_what_a_classifier_learnt(undisturbed: Path, tmp_path: Path) -> None:
    """All but the head, which is another."""
    network = dataclasses.replace(
        RECIPE.paper_network, task="segmentation", dilations=(2,) * 3 * RECIPE.paper_network.depth
    )
    write_frames(tmp_path)
    rest = {"schedule": OneCycle(peak=1e-30), "weight_decay": 0.0, "kernel_rate": 0.0}
    train(tmp_path, tmp_path / "run", recipe=road_recipe(network=network, **rest), start=undisturbed)
    before, _ = runs.load_network(undisturbed)
    after, _ = runs.load_network(tmp_path / "run")
    body = {name: p for name, p in before.named_parameters() if not name.startswith("head.")}
    assert len(body) == len(list(before.parameters())) - 2
    for name, parameter in body.items():
        torch.testing.assert_close(after.get_parameter(name), parameter, rtol=1e-6, atol=1e-7)
    assert after.get_parameter("head.0.weight").any()


def test_a_run_from_another_resumes_as_if_never_stopped(
    data: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(data, tmp_path / "whole", start=undisturbed)
    # In the first epoch there is no state yet, and the start is needed again; in a later one it is not.
    for stop, again in ((2, undisturbed), (12, undisturbed), (12, None)):
        run = tmp_path / f"stopped-{stop}-{again is None}"
        with monkeypatch.context() as patch:
            interrupt_at(stop, patch.setattr)
            with pytest.raises(KeyboardInterrupt):
                train(data, run, start=undisturbed)
        train(data, run, start=again, resume=True)
        assert_same_run(run, tmp_path / "whole")


def test_a_start_that_cannot_be_is_refused(data: Path, undisturbed: Path, tmp_path: Path) -> None:
    other = still(network=dataclasses.replace(RECIPE.paper_network, width=16))
    with pytest.raises(UserError, match=r"holds another network .*width=8.* than tiny-cifar .*width=16"):
        train(data, tmp_path / "run", recipe=other, start=undisturbed)
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    shutil.copy(undisturbed / runs.CONFIG, unfinished)
    with pytest.raises(UserError, match="is missing: --from takes a finished run"):
        train(data, tmp_path / "run-2", start=unfinished)
    train(data, tmp_path / "run-3", recipe=still())
    with pytest.raises(UserError, match=r"another configuration .*from:"):
        train(data, tmp_path / "run-3", recipe=still(), start=undisturbed, resume=True)


def test_weights_that_saw_what_is_held_out_are_refused(data: Path, undisturbed: Path, tmp_path: Path) -> None:
    """Nor by a detour: the run between them held everything out."""
    assert RECIPE.holdout > 0
    train(data, tmp_path / "saw", recipe=still(holdout=0))
    write_run(tmp_path / "detour", still(holdout=RECIPE.holdout + 1))
    saw, detour = (runs.read_config(tmp_path / name) for name in ("saw", "detour"))
    runs.write_config(tmp_path / "detour", dataclasses.replace(detour, start=runs.FinishedRun(saw, "")))
    for start in ("saw", "detour"):
        with pytest.raises(UserError, match="was trained on images that tiny-cifar holds out"):
            train(data, tmp_path / f"after-{start}", recipe=still(), start=tmp_path / start)
        assert not (tmp_path / f"after-{start}" / runs.CONFIG).exists()
    train(data, tmp_path / "fair", recipe=still(), start=undisturbed)


def test_kernels_whose_lengths_would_change_are_refused(data: Path, tmp_path: Path) -> None:
    train(data, tmp_path / "by-sgd", recipe=still())
    orthogonal = dataclasses.replace(RECIPE, kernel_rate=0.1)
    with pytest.raises(UserError, match="trained without orthogonal steps"):
        train(data, tmp_path / "run", recipe=orthogonal, start=tmp_path / "by-sgd")


def test_what_fails_before_it_trains_leaves_no_run_behind(
    data: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """A mistyped --data or --from, put right, is no second run."""
    with pytest.raises(UserError, match="is missing"):
        train(tmp_path / "typo", tmp_path / "run")
    with pytest.raises(UserError, match="cannot be read"):
        train(data, tmp_path / "run", start=tmp_path / "typo")
    train(data, tmp_path / "run")
    assert_same_run(tmp_path / "run", undisturbed)


def test_a_batch_that_cannot_be_shared_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a batch of 8 cannot be shared by 3 processes equally"):
        fit(
            RECIPE,
            data,
            tmp_path / "run",
            seed=0,
            device=torch.device("cpu"),
            compiled=False,
            resume=False,
            ranks=Ranks(0, 3),
        )


def test_the_best_weights_can_be_measured(
    data: Path, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    arguments = ["evaluate", str(run), "--data", str(data), "--split", "held-out", "--json"]
    assert main([*arguments, "--weights", "best"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    best = min(row["validation_score"] for row in runs.read_metrics(run))
    assert scores["error"] == pytest.approx(best)


def test_what_goes_on_with_other_code_says_so_and_remembers(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What stops within the first epoch does not, and what finds it finished: they have trained nothing."""
    run = tmp_path / "run"
    stops = (("zeroth", 2), ("first", 7), ("second", 2), ("second", 7), ("third", 0), ("fourth", 0))
    for commit, stop in stops:
        with monkeypatch.context() as patch:
            patch.setattr(runs, "current_commit", lambda commit=commit: commit)
            if stop:
                interrupt_at(stop, patch.setattr)
            with pytest.raises(KeyboardInterrupt) if stop else nullcontext():
                train(data, run, resume=True)
    config = runs.read_config(run)
    assert config.commit == "first"
    assert [origin.partition(",")[0] for origin in config.origins] == [
        "commit first",
        "commit second",
        "commit third",
    ]
    assert capsys.readouterr().err.count("goes on with commit second") == 1


def test_better_words_for_a_recipe_are_no_other_run(data: Path, undisturbed: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "run")
    train(data, tmp_path / "run", recipe=dataclasses.replace(RECIPE, summary="better words"), resume=True)


def test_weights_that_are_none_of_a_network_are_refused(undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    shutil.copy(undisturbed / runs.STATE, run / runs.CHECKPOINT)
    with pytest.raises(UserError, match="is not a network of this version"):
        runs.load_network(run)
    tensors, meaning = read_tensors(undisturbed / runs.CHECKPOINT)
    del tensors["stem.weight"]
    write_tensors(run / runs.CHECKPOINT, tensors, meaning)
    with pytest.raises(UserError, match=r"^[^\n]*Missing key[^\n]*stem\.weight[^\n]*$"):
        runs.load_network(run)


@pytest.mark.parametrize("missing", ["C++ compiler", "Python.h (Debian: python3-dev)"])
def test_without_a_compiler_or_its_headers_training_goes_on_and_says_so(
    missing: str,
    data: Path,
    undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "Python.h" in missing:
        monkeypatch.setenv("CXX", sys.executable)  # any program that is there
        monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    else:
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
    run = tmp_path / "run"
    assert main(["fit", "tiny-cifar", "--data", str(data), "--out", str(run), "--device", "cpu"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"no {missing} found: training goes on uncompiled, more slowly"
    assert [line.partition(":")[0] for line in said[1:]] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert_same_run(run, undisturbed)


def test_an_unfinished_run_is_loaded_as_its_average_so_far(
    data: Path, undisturbed: Path, tmp_path: Path
) -> None:
    shutil.copytree(undisturbed, tmp_path / "run")
    (tmp_path / "run" / runs.CHECKPOINT).unlink()
    network, config = runs.load_network(tmp_path / "run")
    assert config.epochs_done == 3
    finished, whole = runs.load_network(undisturbed)
    assert whole.epochs_done is None
    for name, value in finished.state_dict().items():
        assert torch.equal(network.state_dict()[name], value)

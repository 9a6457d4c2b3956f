"""What people get wrong: one line that names the value, the bound and the remedy, and exit code 2."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from quatserve.training import recipes
from quatserve.training.commands.main import main
from quatserve.training.data.cifar import CIFAR10
from quatserve.training.errors import UserError
from quatserve.training.loop.checkpoint import read_tensors, write_tensors
from quatserve.training.loop.fit import fit
from quatserve.training.loop.ranks import Ranks
from quatserve.training.recipes.schedule import OneCycle
from quatserve.training.recipes.schema import Recipe
from tests.full_disk import full_disk
from tests.training.tiny_data import road_recipe, small_road_network, write_cifar, write_frames, write_run


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line with which the command refuses."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as exit_:  # argparse's way out
        code = exit_.code  # type: ignore[assignment]
    output = capsys.readouterr()
    assert code == 2
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    return output.err


def train(recipe: Recipe, data: Path, run: Path, *, resume: bool = False) -> None:
    fit(
        recipe,
        data,
        run,
        seed=0,
        device=torch.device("cpu"),
        compiled=False,
        resume=resume,
        ranks=Ranks(),
    )


def test_an_unknown_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    error = refused(capsys, "fit", "shallow", "--data", tmp_path, "--out", tmp_path / "run")
    assert "recipe 'shallow' is unknown: `quatserve recipes` lists them" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("epochs", ["-3", "0", "two", "1.5"])
def test_impossible_epochs(capsys: pytest.CaptureFixture[str], epochs: str) -> None:
    error = refused(capsys, "fit", "paper-cifar10-real", "--data", "d", "--out", "o", f"--epochs={epochs}")
    assert f"--epochs: '{epochs}' is not a whole number from 1" in error


@pytest.mark.parametrize("seed", ["-1", "--5", "2147483648", "abc", "", "1e3"])
def test_an_impossible_seed(capsys: pytest.CaptureFixture[str], seed: str) -> None:
    error = refused(capsys, "fit", "paper-cifar10-real", "--data", "d", "--out", "o", f"--seed={seed}")
    assert f"--seed: '{seed}' is not a whole number from 0 to 2,147,483,647" in error


@pytest.mark.parametrize("threshold", ["0", "1", "nan", "half"])
def test_an_impossible_threshold(capsys: pytest.CaptureFixture[str], threshold: str) -> None:
    error = refused(capsys, "evaluate", "run", "--data", "d", "--threshold", threshold)
    assert f"'{threshold}' is not a number between 0 and 1" in error


def test_a_forgotten_argument_names_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "fit", "paper-cifar10-real", "--out", "o")
    assert "required: --data" in error
    assert "quatserve fit --help" in error


def test_a_shortened_flag_is_not_guessed_at(capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "fit", "paper-cifar10-real", "--data", "d", "--out", "o", "--epoch", "3")
    assert "unrecognized arguments: --epoch 3" in error


@pytest.mark.parametrize("missing", ["C++ compiler", "Python.h (Debian: python3-dev)"])
def test_compiling_without_a_compiler_or_its_headers(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", sys.executable if "Python.h" in missing else "no-such-compiler")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    run = tmp_path / "run"
    error = refused(capsys, "fit", "paper-cifar10-real", "--data", tmp_path, "--out", run, "--compile", "on")
    assert f"--compile on: no {missing} found; install it, or use --compile off" in error
    assert not run.exists()


def test_missing_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    error = refused(capsys, "fit", "paper-cifar10-real", "--data", tmp_path, "--out", tmp_path / "run")
    assert f"{tmp_path / CIFAR10.folder / 'data_batch_1.bin'} is missing" in error


def test_truncated_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_cifar(tmp_path, dataclasses.replace(CIFAR10, records_per_file={"train": 2, "test": 2}))
    error = refused(capsys, "fit", "paper-cifar10-real", "--data", tmp_path, "--out", tmp_path / "run")
    assert "data_batch_1.bin has 6,146 bytes where 30,730,000 are expected" in error


def test_ground_truth_without_frame(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_frames(tmp_path)
    frame = tmp_path / "data_road/training/image_2/um_000001.png"
    frame.unlink()
    error = refused(capsys, "fit", "kitti-road-real", "--data", tmp_path, "--out", tmp_path / "run")
    assert f"um_road_000001.png has no frame: {frame} is missing" in error


def test_an_unreadable_image(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_frames(tmp_path, each=20)
    frame = tmp_path / "data_road/training/image_2/um_000001.png"
    frame.write_bytes(frame.read_bytes()[:80])
    error = refused(capsys, "fit", "kitti-road-real", "--data", tmp_path, "--out", tmp_path / "run")
    assert f"{frame} cannot be read as an image" in error


def test_too_few_frames(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_frames(tmp_path)
    error = refused(capsys, "fit", "kitti-road-real", "--data", tmp_path, "--out", tmp_path / "run")
    assert "0 training images are fewer than one batch of 4" in error


def test_channels_that_do_not_divide(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_run(tmp_path, road_recipe())
    config = json.loads((tmp_path / "config.json").read_text())
    config["recipe"]["network"]["width"] = 30
    (tmp_path / "config.json").write_text(json.dumps(config))
    error = refused(capsys, "evaluate", tmp_path, "--data", tmp_path)
    assert "30 channels cannot be split into quaternion numbers: use a positive multiple of 4" in error


def test_a_directory_that_is_no_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    error = refused(capsys, "evaluate", tmp_path, "--data", tmp_path)
    assert f"is {tmp_path} a run directory?" in error
    (tmp_path / "config.json").write_text("{}")
    error = refused(capsys, "evaluate", tmp_path, "--data", tmp_path)
    assert "config.json is not a configuration of this version" in error


def test_a_run_without_a_finished_epoch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_run(tmp_path, road_recipe())
    (tmp_path / "checkpoint.safetensors").unlink()
    error = refused(capsys, "evaluate", tmp_path, "--data", tmp_path)
    assert f"{tmp_path / 'checkpoint.safetensors'} is missing: no epoch of the run is done" in error


def test_the_best_weights_of_a_recipe_that_holds_out_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_run(tmp_path, road_recipe(holdout=0))
    error = refused(capsys, "evaluate", tmp_path, "--data", tmp_path, "--weights", "best")
    assert "best.safetensors is missing: its recipe holds out nothing to choose them by" in error


def test_a_damaged_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_run(tmp_path, road_recipe())
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    assert f"{path} is damaged" in refused(capsys, "evaluate", tmp_path, "--data", tmp_path)


def test_a_checkpoint_of_another_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_run(tmp_path / "a", road_recipe())
    write_run(tmp_path / "b", road_recipe(weight_decay=0.5))
    (tmp_path / "b/checkpoint.safetensors").replace(tmp_path / "a/checkpoint.safetensors")
    error = refused(capsys, "evaluate", tmp_path / "a", "--data", tmp_path)
    assert "weight_decay: 0.5 -> 0.0002" in error


def test_resuming_with_another_configuration(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    recipe = dataclasses.replace(road_recipe(), name="kitti-road-quaternion")
    write_run(tmp_path / "run", recipe)
    arguments: list[str | Path] = [
        "fit",
        "kitti-road-quaternion",
        "--data",
        tmp_path,
        "--out",
        tmp_path / "run",
    ]
    assert "add --resume to go on, or name another --out" in refused(capsys, *arguments)
    error = refused(capsys, *arguments, "--resume", "--seed", "4")
    assert "batch_size: 2 -> 4" in error
    assert "seed: 0 -> 4" in error


@pytest.fixture
def resuming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str | Path]:
    """The command that resumes the small road run in `run`, which was stopped before its last file."""
    write_frames(tmp_path / "data")
    recipe = road_recipe(name="small-road", ema_decay=0.0)
    monkeypatch.setitem(recipes.RECIPES, recipe.name, lambda: recipe)
    train(recipe, tmp_path / "data", tmp_path / "run")
    (tmp_path / "run/checkpoint.safetensors").unlink()
    command: list[str | Path] = ["fit", recipe.name, "--data", tmp_path / "data", "--out", tmp_path / "run"]
    return [*command, "--resume", "--compile", "off", "--device", "cpu"]


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        (
            {"network": small_road_network(width=16), "ema_decay": 0.0},
            "(network.stem.weight is 16 x 3 x 3 x 3 where 8 x 3 x 3 x 3 is expected, and ",
        ),
        (
            {"network": small_road_network(whiten=False), "ema_decay": 0.0},
            "(network.components.norm1.gamma is missing, and ",
        ),
        ({}, "(average.blocks.0.norm1.running_covariance is unknown, and "),
    ],
)
def test_resuming_from_the_state_of_another_network(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    resuming: list[str | Path],
    changes: dict[str, object],
    difference: str,
) -> None:
    train(road_recipe(**changes), tmp_path / "data", tmp_path / "other")
    capsys.readouterr()  # the line of the epoch
    state = tmp_path / "run/state.safetensors"
    (tmp_path / "other/state.safetensors").replace(state)
    error = refused(capsys, *resuming)
    assert f"{state} is the state of another run {difference}" in error


def test_resuming_from_what_is_no_state(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, resuming: list[str | Path]
) -> None:
    state, best = tmp_path / "run/state.safetensors", tmp_path / "run/best.safetensors"
    whole = state.read_bytes()
    capsys.readouterr()  # the line of the epoch
    for length in (0, 100, len(whole) - 1):
        state.write_bytes(whole[:length])
        assert f"{state} is damaged (" in refused(capsys, *resuming)
    state.write_bytes(save({"x": torch.zeros(3)}, {"format": "pt"}))
    assert f"{state} is not a checkpoint of this program: its format is pt" in refused(capsys, *resuming)
    state.write_bytes(best.read_bytes())
    assert "(network.components.norm1.beta is missing, and " in refused(capsys, *resuming)
    state.write_bytes(whole)
    assert main([str(argument) for argument in resuming]) == 0


def test_a_full_disk_keeps_the_previous_file(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    write_tensors(path, {"x": torch.arange(1000)}, {"step": 1})
    with full_disk(1_000), pytest.raises(UserError, match=r"state\.safetensors could not be written"):
        write_tensors(path, {"x": torch.zeros(1000)}, {"step": 2})
    tensors, meaning = read_tensors(path)
    assert tensors["x"].equal(torch.arange(1000))
    assert meaning == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_full_disk_stops_training_and_space_lets_it_go_on(tmp_path: Path) -> None:
    write_frames(tmp_path / "data")
    run, recipe = tmp_path / "run", road_recipe()
    with full_disk(10_000), pytest.raises(UserError, match="the previous one is kept"):
        train(recipe, tmp_path / "data", run)
    assert not list(run.glob("*.part"))
    train(recipe, tmp_path / "data", run, resume=True)
    (run / "checkpoint.safetensors").unlink()  # as if the disk had filled up before the last file
    kept = {path.name: path.read_bytes() for path in run.iterdir()}
    assert {"state.safetensors", "best.safetensors", "curves.png"} <= set(kept)
    with full_disk(1_000), pytest.raises(UserError, match="the previous one is kept"):
        train(recipe, tmp_path / "data", run, resume=True)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == kept


def test_a_loss_that_turns_nan(tmp_path: Path) -> None:
    write_frames(tmp_path / "data")
    recipe = road_recipe(schedule=OneCycle(peak=1e38), epochs=2)
    with pytest.raises(UserError) as caught:
        train(recipe, tmp_path / "data", tmp_path / "run")
    message = str(caught.value)
    assert "the loss is nan at step " in message or "the loss is inf at step " in message
    assert "(learning rate " in message
    assert "try a lower learning rate" in message
    assert "\n" not in message


def test_a_run_directory_that_cannot_be_made(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = refused(
        capsys, "fit", "paper-cifar10-real", "--data", tmp_path, "--out", tmp_path / "file" / "run"
    )
    assert "name another --out" in error


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["evaluate", str(tmp_path), "--data", str(tmp_path), "--debug"]) == 2
    error = capsys.readouterr().err
    assert "Traceback (most recent call last)" in error
    assert error.splitlines()[-1].startswith("error: ")


def test_the_process_exits_with_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quatserve", "fit", "shallow", "--data", ".", "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1

"""Two gloo ranks against one process with the whole batch; torchrun against one command."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.multiprocessing.spawn import spawn

from quatserve.training.commands.main import main
from quatserve.training.loop import run as runs
from quatserve.training.loop.checkpoint import read_tensors
from quatserve.training.loop.fit import fit
from quatserve.training.loop.ranks import Ranks, meet
from quatserve.training.nn.algebra import ALGEBRAS
from tests.training.oracles import assert_close
from tests.training.photographs import write_photographs
from tests.training.tiny_command import tiny_recipes
from tests.training.two_ranks import Results, network_step, normalisation, run_rank

ROOT = Path(__file__).parents[3]
Outcome = list[tuple[dict[str, Results], dict[str, str]]]
patient = pytest.mark.timeout(400)  # four processes import torch


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What both ranks computed."""
    folder = tmp_path_factory.mktemp("ranks")
    spawn(run_rank, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@patient
@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("algebra", ALGEBRAS)
def test_normalisation_of_unequal_shares(ranks: Outcome, algebra: str, whiten: bool) -> None:
    whole = normalisation(algebra, whiten=whiten)
    first, second = (results[f"{algebra} {whiten}"] for results, _ in ranks)
    assert first.keys() == whole.keys()
    for key, expected in whole.items():
        if key in ("y", "dx"):
            assert_close(torch.cat([first[key], second[key]]), expected)
        elif key.startswith("d"):  # a parameter's gradient: the sum of both ranks'
            assert_close(first[key] + second[key], expected)
        else:  # running statistics
            assert torch.equal(first[key], second[key])
            assert_close(first[key], expected)


@patient
@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_a_step_through_distributed_data_parallel(ranks: Outcome, task: str) -> None:
    """Outputs, loss, gradients and running statistics of the whole batch, on both ranks alike."""
    whole = network_step(task, Ranks())
    for results, _ in ranks:
        assert results[task].keys() == whole.keys()
        for key, expected in whole.items():
            assert_close(results[task][key], expected)
            assert torch.equal(results[task][key], ranks[0][0][task][key])


@patient
def test_a_nan_in_one_share_stops_both_ranks_alike(ranks: Outcome) -> None:
    told = [words["nan"] for _, words in ranks]
    assert told[0] == told[1]
    assert told[0].startswith("the loss is nan at step 2 (learning rate ")


@patient
def test_what_the_first_rank_cannot_do_stops_both(ranks: Outcome) -> None:
    assert [words["full disk"] for _, words in ranks] == ["the disk is full"] * 2


# Meeting in a store that outlives the processes


def met(store: HashStore, order: list[int]) -> list[int]:
    """The numbers that three ranks agree on, when they come in this order."""

    def come(place: int) -> int:
        time.sleep(0.2 * place)
        return meet(store, order[place], 3)

    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(come, range(3)))


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_ranks_meet_those_of_their_own_start(order: list[int]) -> None:
    store = HashStore()
    starts = [met(store, [0, 1, 2]), met(store, order), met(store, order)]
    assert all(len(set(start)) == 1 for start in starts)
    first, second, third = (start[0] for start in starts)
    assert first <= 3 < second < third


def test_ranks_meet_after_a_start_that_one_of_them_missed() -> None:
    store = HashStore()
    store.set_timeout(timedelta(seconds=0.5))
    with pytest.raises(RuntimeError, match=r"[Tt]imeout"):
        meet(store, 0, 3)
    store.set_timeout(timedelta(seconds=60))
    assert len(set(met(store, [2, 1, 0]))) == 1


# The command


ONE_MACHINE = ("--standalone", "--nproc-per-node", "2")


def start(
    data: Path,
    run: Path,
    recipe: str,
    options: Sequence[str] = ONE_MACHINE,
    flags: Sequence[str] = ("--compile", "off"),
    **variables: str,
) -> "subprocess.CompletedProcess[str]":
    """torchrun with processes of which the second comes late to the run directory."""
    command = [sys.executable, "-m", "torch.distributed.run", *options]
    command += ["-m", "tests.training.tiny_command", "fit", recipe, *flags]
    command += ["--data", str(data), "--out", str(run)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def torchrun(data: Path, run: Path, recipe: str, *options: str, **variables: str) -> str:
    """What they say when all went well."""
    done = start(data, run, recipe, options or ONE_MACHINE, **variables)
    assert done.returncode == 0, done.stderr
    return done.stderr


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as server:
        return int(server.getsockname()[1])


def one_process(data: Path, run: Path, recipe: str, teacher: Path | None = None) -> None:
    device = torch.device("cpu")
    chosen = tiny_recipes()[recipe]
    how: dict[str, Any] = {"device": device, "compiled": False, "resume": False, "ranks": Ranks()}
    fit(chosen, data, run, seed=0, teacher=teacher, **how)


def rows_without_speed(run: Path) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if k != "images_per_second"} for row in runs.read_metrics(run)]


@pytest.fixture(scope="module")
def two_processes(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "cifar"
    torchrun(data, run, "tiny-cifar")
    return run


def assert_equal_to_rounding(ours: Path, theirs: Path) -> None:
    a, b = (read_tensors(run / runs.CHECKPOINT)[0] for run in (ours, theirs))
    assert a.keys() == b.keys()
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=2e-3, atol=2e-4)
    for row, other in zip(rows_without_speed(ours), rows_without_speed(theirs), strict=True):
        assert row == pytest.approx(other, rel=1e-3)


@patient
def test_torchrun_trains_what_one_process_trains(data: Path, two_processes: Path, tmp_path: Path) -> None:
    one_process(data, tmp_path / "one", "tiny-cifar")
    assert_equal_to_rounding(two_processes, tmp_path / "one")


@patient
def test_torchrun_trains_a_road_network_alike(data: Path, tmp_path: Path) -> None:
    torchrun(data, tmp_path / "two", "tiny-road")
    one_process(data, tmp_path / "one", "tiny-road")
    assert_equal_to_rounding(tmp_path / "two", tmp_path / "one")


@patient
def test_torchrun_teaches_what_one_process_teaches(data: Path, two_processes: Path, tmp_path: Path) -> None:
    """Each rank asks about its own share."""
    flags = ("--compile", "off", "--teacher", str(two_processes))
    done = start(data, tmp_path / "two", "tiny-taught", flags=flags)
    assert done.returncode == 0, done.stderr
    one_process(data, tmp_path / "one", "tiny-taught", teacher=two_processes)
    assert_equal_to_rounding(tmp_path / "two", tmp_path / "one")


@patient
def test_torchrun_trains_on_a_folder_alike(tmp_path: Path) -> None:
    """The first rank decodes the images, and both map them."""
    photos = write_photographs(tmp_path / "photos", {"cats": 20, "dogs": 30})
    small = ("--size", "32", "--stem-stride", "2", "--width", "8", "--depth", "1", "--batch-size", "8")
    flags = (*small, "--epochs", "2", "--compile", "off", "--device", "cpu", "--lr", "0.01")
    done = start(photos, tmp_path / "two", "folder-quaternion", flags=flags)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("43 training, 7 held-out images") == 1
    one = ["fit", "folder-quaternion", *flags, "--data", str(photos), "--out", str(tmp_path / "one")]
    assert main(one) == 0
    assert_equal_to_rounding(tmp_path / "two", tmp_path / "one")


def assert_restarted(run: Path, said: str, undisturbed: Path) -> None:
    """Every epoch was finished once, and the run is the one that never was disturbed."""
    epochs = [line.partition(":")[0] for line in said.splitlines() if line.startswith("epoch")]
    assert epochs == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    (ours, meaning), (theirs, _) = (read_tensors(folder / runs.STATE) for folder in (run, undisturbed))
    assert meaning["step"] == 15
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert rows_without_speed(run) == rows_without_speed(undisturbed)


@patient
@pytest.mark.parametrize("late", ["0", "1"])
def test_torchrun_restarts_from_the_last_state(
    data: Path, two_processes: Path, tmp_path: Path, late: str
) -> None:
    """One rank is killed in the second epoch; either may be the first to come back."""
    run, options = tmp_path / "run", (*ONE_MACHINE, "--max-restarts", "1")
    said = torchrun(data, run, "tiny-cifar", *options, ACCIDENT="kill 1 2", LATE=late)
    assert_restarted(run, said, two_processes)


@patient
def test_two_machines_restart_from_the_last_state(data: Path, two_processes: Path, tmp_path: Path) -> None:
    """Only the machine whose process was killed counts a restart: that of the other had no failure."""
    run, paused = tmp_path / "run", str(tmp_path / "paused")
    options = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "1", "--local-addr", "localhost"]
    options += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}"]

    def machine(accident: str) -> str:
        return torchrun(data, run, "tiny-cifar", *options, ACCIDENT=accident, PAUSED=paused)

    with ThreadPoolExecutor(2) as pool:
        said = "".join(pool.map(machine, ["kill 1 2", "pause 1 2"]))
    assert_restarted(run, said, two_processes)


@patient
def test_a_directory_that_is_not_shared_is_refused(data: Path, two_processes: Path, tmp_path: Path) -> None:
    """One rank would go on where the other begins: they would average the gradients of two networks."""
    run = tmp_path / "run"
    shutil.copytree(two_processes, run)
    (run / runs.CHECKPOINT).unlink()
    done = start(data, run, "tiny-cifar", flags=("--compile", "off", "--resume"), OWN_DISK="1")
    assert done.returncode != 0
    assert f"not every process sees the files of {run}" in done.stderr
    assert not (run / runs.CHECKPOINT).exists()

"""Two gloo ranks against one process with the whole batch; torchrun against one command."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.multiprocessing.spawn import spawn

from tests.training.oracles import assert_close
from tests.training.tiny_command import install_tiny_recipes, tiny_recipes, write_tiny_data
from tests.training.two_ranks import Results, network_step, normalisation, run_rank
from training import run as runs
from training.algebra import ALGEBRAS
from training.checkpoint import read_tensors
from training.fit import fit
from training.ranks import Ranks

ROOT = Path(__file__).parents[2]
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


# The command


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("data")
    write_tiny_data(folder)
    with pytest.MonkeyPatch.context() as patch:
        install_tiny_recipes(patch.setitem)
        yield folder


def torchrun(data: Path, run: Path, recipe: str, *options: str, accident: str | None = None) -> str:
    """Two processes, the second of which comes late to the run directory; what they say."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *options,
    ]
    command += ["-m", "tests.training.tiny_command", "fit", recipe, "--compile", "off"]
    command += ["--data", str(data), "--out", str(run)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({"ACCIDENT": accident} if accident else {})
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def one_process(data: Path, run: Path, recipe: str) -> None:
    device = torch.device("cpu")
    chosen = tiny_recipes()[recipe]
    fit(chosen, data, run, seed=0, device=device, compiled=False, resume=False, ranks=Ranks())


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

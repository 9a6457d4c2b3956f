"""The paper's parameter counts, exactly, and the work of a network against torch's own counter."""

import contextlib
import io
import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from quatserve.training.commands.main import main
from quatserve.training.networks.counting import count_multiply_accumulates, count_parameters
from quatserve.training.networks.residual import Network, NetworkConfig

PAPER = {
    "cifar10-real": 508_932,
    "cifar10-complex": 257_412,
    "cifar10-quaternion": 133_560,
    "cifar10-real-deep": 3_619_844,
    "cifar10-complex-deep": 1_823_620,
    "cifar10-quaternion-deep": 932_792,
    "paper-kitti-road-real": 507_029,
    "paper-kitti-road-complex": 254_037,
    "paper-kitti-road-quaternion": 128_701,
}
OURS = {"kitti-road-quaternion": 132_399, "cifar100-quaternion": 145_170}


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, int | str]]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["networks", "--json"]) == 0
    return {row["name"]: row for row in json.loads(printed.getvalue())}


@pytest.mark.parametrize(("name", "parameters"), (PAPER | OURS).items())
def test_the_command_prints_the_papers_counts(
    rows: dict[str, dict[str, int | str]], name: str, parameters: int
) -> None:
    assert rows[name]["parameters"] == parameters


def test_running_statistics_are_not_trainable(rows: dict[str, dict[str, int | str]]) -> None:
    assert rows["cifar10-quaternion"]["trainable"] == 130_948


def test_every_algebra_and_both_tasks_are_listed(rows: dict[str, dict[str, int | str]]) -> None:
    assert {row["algebra"] for row in rows.values()} == {"real", "complex", "quaternion", "octonion"}
    assert {row["task"] for row in rows.values()} == {"classification", "segmentation"}
    assert "cifar10-quaternion-holdout" not in rows  # the same network as without


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["networks"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if " cifar10-quaternion " in line)
    assert line.split()[1:5] == ["quaternion", "classification", "133,560", "130,948"]


@pytest.mark.parametrize("algebra", ["real", "complex", "quaternion", "octonion"])
@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_multiply_accumulates_are_half_of_torchs_flops(algebra: str, task: str) -> None:
    """Without whitening no normalisation is a convolution, so that torch counts what we count."""
    network = Network(
        NetworkConfig(algebra=algebra, task=task, depth=1, width=16, whiten=False)  # type: ignore[arg-type]
    ).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.zeros(1, 3, 17, 24))
    flops = counter.get_flop_counts()["Global"]
    expected = sum(flops.get(kind, 0) for kind in (torch.ops.aten.convolution, torch.ops.aten.addmm))
    assert 2 * count_multiply_accumulates(network, 17, 24) == expected


def test_counting_leaves_the_network_alone() -> None:
    network = Network(NetworkConfig(depth=1, width=8)).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    count_multiply_accumulates(network, 32, 32)
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_frozen_weights_still_count_as_trainable() -> None:
    """A moving average is frozen; its size is that of the network it follows."""
    network = Network(NetworkConfig(depth=1, width=8))
    assert count_parameters(network.requires_grad_(False)) == count_parameters(Network(network.config))

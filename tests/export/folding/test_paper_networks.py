"""The fold of the paper's networks, in float64, and the form that makes it fast."""

import copy
import itertools
from collections import Counter

import pytest
import torch
from torch import fx, nn

from quatserve.export.folding import FoldError, fold
from quatserve.training.networks.residual import Block, NetworkConfig, Task
from quatserve.training.nn.algebra import ALGEBRAS
from tests.export.tiny import randomised

DILATIONS = (1, 2, 4, 1, 3, 2)
TASKS: tuple[tuple[Task, tuple[int, ...]], ...] = (("classification", ()), ("segmentation", DILATIONS))


def every_config() -> list[NetworkConfig]:
    """Every algebra, task, encoding and kind of normalisation; dilations where they occur."""
    found = [
        NetworkConfig(algebra=algebra, task=task, whiten=whiten, width=8, classes=7, dilations=dilations)
        for algebra in ALGEBRAS
        for task, dilations in TASKS
        for whiten in (True, False)
    ]
    greys = itertools.product(TASKS, (True, False))
    return found + [NetworkConfig(encoding="grey", task=task, whiten=w, width=8) for (task, _), w in greys]


def title(config: NetworkConfig) -> str:
    return f"{config.algebra}-{config.task}-{config.encoding}-{'whiten' if config.whiten else 'centre'}"


def calls(folded: fx.GraphModule) -> Counter[str]:
    """What the folded module calls, by the name of the layer's type or the function."""
    return Counter(
        type(folded.get_submodule(str(node.target))).__name__
        if node.op == "call_module"
        else getattr(node.target, "__name__", str(node.target))
        for node in folded.graph.nodes
        if node.op.startswith("call")
    )


@pytest.mark.parametrize("config", every_config(), ids=title)
def test_the_folded_network_is_the_network(config: NetworkConfig) -> None:
    network = randomised(config)
    folded = fold(network)
    image = torch.randn(2, 3, 13, 18, dtype=torch.float64)
    with torch.no_grad():
        expected, found = network.double()(image), folded(image)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * float(expected.abs().max()))


@pytest.mark.parametrize("config", every_config(), ids=title)
def test_nothing_moves_channels_at_run_time(config: NetworkConfig) -> None:
    """Joins are plain concatenations, and the image is read again instead of repeated."""
    found = calls(fold(randomised(config)))
    body = Counter({"Conv2d": 21, "relu": 13, "add": 4, "cat": 2})
    grey, learned = Counter({"conv2d": 1}), Counter({"Conv2d": 3, "relu": 2, "cat": 1})
    classes = Counter({"AdaptiveAvgPool2d": 1, "Flatten": 1, "Linear": 1})
    encoding = grey if config.encoding == "grey" else learned
    assert found == body + encoding + (classes if config.task == "classification" else Counter({"Conv2d": 1}))


def test_the_learned_components_read_the_image_as_one_path() -> None:
    folded = fold(randomised(NetworkConfig(width=8)))
    layers = [folded.get_submodule(f"components.{name}") for name in ("norm1", "conv1", "conv2")]
    shapes = [(x.in_channels, x.out_channels, x.groups) for x in layers if isinstance(x, nn.Conv2d)]
    assert shapes == [(3, 9, 1), (9, 9, 3), (9, 9, 3)]


@pytest.mark.parametrize(("algebra", "whiten", "alone"), [("quaternion", True, False), ("real", True, True)])
def test_openings_are_dense_only_where_channels_mix(algebra: str, whiten: bool, alone: bool) -> None:
    folded = fold(randomised(NetworkConfig(algebra=algebra, whiten=whiten, width=8)))
    openings = [folded.get_submodule(f"blocks.{i}.norm1") for i in range(6)]
    assert {opening.groups > 1 for opening in openings} == {alone}  # type: ignore[operator]


def test_weights_are_as_many_as_before_the_fold_was_general() -> None:
    """The shipped classifier: 536,445 numbers."""
    folded = fold(randomised(NetworkConfig()))
    assert sum(parameter.numel() for parameter in folded.parameters()) == 536_445


def test_the_network_is_left_as_it_was() -> None:
    network = randomised(NetworkConfig(width=8))
    before = copy.deepcopy(network.state_dict())
    for parameter in fold(network).parameters():
        parameter.fill_(7)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert {t.dtype for t in network.state_dict().values()} == {torch.float32}


def test_a_covariance_without_a_factor_names_the_layer_and_the_channel() -> None:
    network = randomised(NetworkConfig(width=8))
    block = network.blocks[1]
    assert isinstance(block, Block)
    block.norm2.running_covariance[1] = torch.diag(torch.tensor([1.0, 1.0, -0.5, 1.0]))
    with pytest.raises(FoldError, match=r"^blocks\.1\.norm2: covariance of channel 1 .*-0\.5"):
        fold(network)

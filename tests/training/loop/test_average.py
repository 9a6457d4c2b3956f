"""The moving average against its recursion in plain numbers."""

import pytest
import torch

from quatserve.training.loop.average import Average
from quatserve.training.networks.residual import Network, NetworkConfig
from tests.training.oracles import randn


def test_average_follows_its_recursion() -> None:
    network = Network(NetworkConfig(depth=1, width=8)).double()
    average = Average(network, decay=0.6)
    expected = {name: value.clone() for name, value in network.state_dict().items()}
    for step in range(1, 31):
        with torch.no_grad():
            for tensor in network.state_dict().values():
                tensor.add_(0.1 * randn(*tensor.shape, seed=step))
        average.update(step)
        decay = min(0.6, step / (step + 10))
        for name, value in network.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * value
    for name, value in average.network.state_dict().items():
        torch.testing.assert_close(value, expected[name])


def test_running_statistics_are_averaged_too() -> None:
    network = Network(NetworkConfig(depth=1, width=8))
    average = Average(network, decay=0.9)
    network(randn(2, 3, 8, 8, dtype=torch.float32) + 3)
    average.update(1000)
    theirs, ours = network.norm.running_mean, average.network.get_submodule("norm").running_mean
    assert isinstance(ours, torch.Tensor)
    torch.testing.assert_close(ours, 0.1 * theirs)
    assert theirs.abs().max() > 0


def test_average_is_apart_from_the_network() -> None:
    network = Network(NetworkConfig(depth=1, width=8))
    average = Average(network, decay=0.9)
    assert not average.network.training
    assert network.training
    assert not any(parameter.requires_grad for parameter in average.network.parameters())
    ours, theirs = average.network.state_dict(), network.state_dict()
    assert list(ours) == list(theirs)
    assert not {t.data_ptr() for t in ours.values()} & {t.data_ptr() for t in theirs.values()}


def test_average_follows_weights_that_were_loaded() -> None:
    """Loading replaces values in place: the average still sees them."""
    network, other = (Network(NetworkConfig(depth=1, width=8)) for _ in range(2))
    average = Average(network, decay=0.5)
    network.load_state_dict(other.state_dict())
    for step in range(1000, 1060):
        average.update(step)
    for name, value in average.network.state_dict().items():
        assert value == pytest.approx(other.state_dict()[name], abs=1e-6)

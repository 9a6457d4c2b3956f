"""The moving average against its recursion in plain numbers."""

import torch
from torch import nn

from quatserve.training.loop.average import moving_average
from quatserve.training.networks.residual import Network, NetworkConfig
from tests.training.oracles import randn


def small_network() -> Network:
    return Network(NetworkConfig(depth=1, width=8))


def test_average_follows_its_recursion() -> None:
    """The first update takes the network as it is; the n-th forgets n / (n + 10), at most the decay."""
    network = small_network().double()
    average = moving_average(network, decay=0.6)
    expected: dict[str, torch.Tensor] = {}
    for count in range(30):
        with torch.no_grad():
            for tensor in network.state_dict().values():
                tensor.add_(0.1 * randn(*tensor.shape, seed=count))
        average.update_parameters(network)
        decay = min(0.6, count / (count + 10))
        for name, value in network.state_dict().items():
            expected[name] = decay * expected.get(name, 0) + (1 - decay) * value
    for name, value in average.module.state_dict().items():
        torch.testing.assert_close(value, expected[name])


def test_running_statistics_are_averaged_too() -> None:
    network = small_network()
    average = moving_average(network, decay=0.9)
    average.update_parameters(network)
    average.n_averaged.fill_(1000)
    network(randn(2, 3, 8, 8, dtype=torch.float32) + 3)
    average.update_parameters(network)
    theirs, ours = network.norm.running_mean, average.module.get_submodule("norm").running_mean
    assert isinstance(ours, torch.Tensor)
    torch.testing.assert_close(ours, 0.1 * theirs)
    assert theirs.abs().max() > 0


def test_indices_are_left_as_they_are() -> None:
    """An average of whole numbers is truncated: 0.9 * 3 + 0.1 * 3 would become 2."""
    network = nn.BatchNorm2d(2)
    network.register_buffer("index", torch.tensor([3, 1]))
    average = moving_average(network, decay=0.9)
    for _ in range(3):
        average.update_parameters(network)
    assert average.module.state_dict()["index"].tolist() == [3, 1]


def test_average_is_apart_from_the_network() -> None:
    network = small_network()
    average = moving_average(network, decay=0.9)
    assert not average.module.training
    assert network.training
    assert not any(parameter.requires_grad for parameter in average.module.parameters())
    ours, theirs = average.module.state_dict(), network.state_dict()
    assert list(ours) == list(theirs)
    assert not {t.data_ptr() for t in ours.values()} & {t.data_ptr() for t in theirs.values()}

"""The fold against the definition, and the folded network against the network, in float64."""

import copy
import itertools

import numpy as np
import pytest
import torch
from scipy import linalg
from torch.nn import functional as F

from quatserve.export.folded import FoldedBlock, FoldedNetwork, fold
from quatserve.export.folding import (
    absorb,
    absorb_into_reader,
    joined_order,
    normalisation_map,
)
from quatserve.training.errors import UserError
from quatserve.training.networks.residual import Block, NetworkConfig, Task
from quatserve.training.nn.algebra import ALGEBRAS
from quatserve.training.nn.join import join_components
from quatserve.training.nn.whitening import NotPositiveDefiniteError
from tests.export.tiny import randomised

DIMENSIONS = [1, 2, 4, 8]
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


@pytest.mark.parametrize("config", every_config(), ids=title)
def test_folded_network_is_the_network(config: NetworkConfig) -> None:
    network = randomised(config)
    folded = fold(network)
    image = torch.randn(2, 3, 13, 18, dtype=torch.float64)
    with torch.no_grad():
        expected, found = network.double()(image), folded(image)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * float(expected.abs().max()))


@pytest.mark.parametrize("d", DIMENSIONS)
def test_normalisation_map_is_the_definition(d: int) -> None:
    """gamma W (x - mu) + beta, channel by channel, with SciPy's factor."""
    channels, random = 3, np.random.default_rng(d)
    mean, beta, x = (random.normal(size=(d, channels)) for _ in range(3))
    factors = random.normal(size=(channels, d, 2 * d))
    covariance = factors @ factors.transpose(0, 2, 1)
    triangles = random.normal(size=(channels, d, d))
    gamma = triangles + triangles.transpose(0, 2, 1)
    rows, columns = np.triu_indices(d)
    packed = gamma[:, rows, columns]

    mu, V, g, b = (torch.from_numpy(value) for value in (mean, covariance, packed, beta))
    matrix, offset = normalisation_map(mu, V, g, b, 1e-3)
    found = (matrix.numpy() @ x.ravel() + offset.numpy()).reshape(d, channels)

    for c in range(channels):
        L = linalg.cholesky(covariance[c] + 1e-3 * np.eye(d), lower=True)
        white = linalg.solve_triangular(L, x[:, c] - mean[:, c], lower=True)
        np.testing.assert_allclose(found[:, c], gamma[c] @ white + beta[:, c], rtol=1e-10, atol=1e-10)


def test_map_without_covariance_only_centres() -> None:
    mean, beta = torch.randn(2, 4, 3, dtype=torch.float64)
    matrix, offset = normalisation_map(mean, None, None, beta, 1e-4)
    assert torch.equal(matrix, torch.eye(12, dtype=torch.float64))
    assert torch.equal(offset, (beta - mean).flatten())


def test_absorbing_is_exact_at_the_border() -> None:
    weight, matrix = torch.randn(6, 3, 3, 3).double(), torch.randn(6, 6).double()
    bias, image = torch.randn(6).double(), torch.randn(1, 3, 5, 5).double()
    expected = F.conv2d(F.conv2d(image, weight, padding=1), matrix[..., None, None], bias)
    torch.testing.assert_close(F.conv2d(image, absorb(weight, matrix), bias, padding=1), expected)


def test_absorbing_into_the_reader_is_exact_at_the_border() -> None:
    weight, matrix = torch.randn(6, 4, 3, 3).double(), torch.randn(4, 3).double()
    image = torch.randn(1, 3, 5, 5).double()
    expected = F.conv2d(F.conv2d(image, matrix[..., None, None]), weight, padding=1)
    torch.testing.assert_close(F.conv2d(image, absorb_into_reader(weight, matrix), padding=1), expected)


@pytest.mark.parametrize("name", list(ALGEBRAS))
def test_joined_order_undoes_the_component_wise_join(name: str) -> None:
    a, b = torch.randn(2, 1, 16, 1, 1)
    joined = join_components(ALGEBRAS[name], a, b)
    assert torch.equal(joined[:, joined_order(ALGEBRAS[name].dimension, 16)], torch.cat([a, b], 1))


def test_training_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="training mode"):
        fold(randomised(NetworkConfig(width=8)).train())


def test_the_network_is_left_as_it_was() -> None:
    network = randomised(NetworkConfig(width=8))
    before = copy.deepcopy(network.state_dict())
    folded = fold(network)
    for parameter in folded.parameters():
        parameter.fill_(7)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert {t.dtype for t in network.state_dict().values()} == {torch.float32}


def test_covariance_without_a_factor_names_the_layer_and_the_channel() -> None:
    network = randomised(NetworkConfig(width=8))
    block = network.blocks[1]
    assert isinstance(block, Block)
    block.norm2.running_covariance[1] = torch.diag(torch.tensor([1.0, 1.0, -0.5, 1.0]))
    with pytest.raises(UserError, match=r"blocks\.1\.norm2: covariance of channel 1 .*-0\.5"):
        fold(network)


def test_a_dead_channel_is_no_error() -> None:
    """V = 0 has no factor, V + eps I has: the layer itself computes with it."""
    zero, one = torch.zeros(1, 4, 4).double(), torch.ones(4, 1).double()
    matrix, _ = normalisation_map(one, zero, None, one, 1e-4)
    torch.testing.assert_close(matrix, 100 * torch.eye(4).double())
    with pytest.raises(NotPositiveDefiniteError):
        normalisation_map(one, zero, None, one, 0.0)


@pytest.mark.parametrize(("algebra", "whiten", "alone"), [("quaternion", True, False), ("real", True, True)])
def test_openings_are_dense_only_where_channels_mix(algebra: str, whiten: bool, alone: bool) -> None:
    folded: FoldedNetwork = fold(randomised(NetworkConfig(algebra=algebra, whiten=whiten, width=8)))
    for block in folded.blocks:
        assert isinstance(block, FoldedBlock)
        assert (block.opening.groups > 1) is alone


def test_grey_disappears_into_the_stem() -> None:
    folded = fold(randomised(NetworkConfig(encoding="grey", width=8)))
    assert folded.components is None
    assert folded.stem.in_channels == 3

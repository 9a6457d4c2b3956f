"""The affine map of a normalisation, and its absorption, against their definitions."""

import numpy as np
import pytest
import torch
from scipy import linalg
from torch import Tensor, nn
from torch.nn import functional as F

from quatserve.export.folding import layers
from quatserve.export.folding.maps import normalisation_map
from quatserve.export.folding.order import joined
from quatserve.training.nn.algebra import ALGEBRAS, QUATERNION, Algebra
from quatserve.training.nn.join import join_components
from quatserve.training.nn.norm import HypercomplexBatchNorm2d

every_algebra = pytest.mark.parametrize("algebra", ALGEBRAS.values(), ids=lambda algebra: algebra.name)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@every_algebra
def test_the_map_is_the_definition(algebra: Algebra) -> None:
    """gamma W (x - mu) + beta, channel by channel, with SciPy's factor."""
    d, channels, random = algebra.dimension, 3, np.random.default_rng(algebra.dimension)
    mean, beta, x = (random.normal(size=(d, channels)) for _ in range(3))
    factors = random.normal(size=(channels, d, 2 * d))
    covariance = factors @ factors.transpose(0, 2, 1)
    triangles = random.normal(size=(channels, d, d))
    gamma = triangles + triangles.transpose(0, 2, 1)
    rows, columns = np.triu_indices(d)

    norm = HypercomplexBatchNorm2d(d * channels, eps=1e-3, algebra=algebra).double().eval()
    assert norm.gamma is not None
    with torch.no_grad():
        norm.running_mean.copy_(torch.from_numpy(mean))
        norm.running_covariance.copy_(torch.from_numpy(covariance))
        norm.gamma.copy_(torch.from_numpy(gamma[:, rows, columns]))
        norm.beta.copy_(torch.from_numpy(beta))
        matrix, offset = normalisation_map(norm, "norm")
    found = (matrix.numpy() @ x.ravel() + offset.numpy()).reshape(d, channels)

    for c in range(channels):
        L = linalg.cholesky(covariance[c] + 1e-3 * np.eye(d), lower=True)
        white = linalg.solve_triangular(L, x[:, c] - mean[:, c], lower=True)
        np.testing.assert_allclose(found[:, c], gamma[c] @ white + beta[:, c], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("affine", [True, False])
def test_the_map_of_torchs_norm_is_torchs_norm(affine: bool) -> None:
    norm = nn.BatchNorm2d(5, affine=affine).double()
    norm(1 + 3 * randn(7, 5, 3, 3))
    x = randn(2, 5, 3, 3)
    with torch.no_grad():
        matrix, offset = normalisation_map(norm.eval(), "norm")
        torch.testing.assert_close(F.conv2d(x, matrix[..., None, None], offset), norm(x))


def test_a_norm_that_only_centres_has_the_identity() -> None:
    norm = HypercomplexBatchNorm2d(12, whiten=False, algebra=QUATERNION).double().eval()
    norm.running_mean.normal_()
    with torch.no_grad():
        matrix, offset = normalisation_map(norm, "norm")
    assert torch.equal(matrix, torch.eye(12, dtype=torch.float64))
    assert torch.equal(offset, -norm.running_mean.flatten())


def test_a_dead_channel_is_no_error() -> None:
    """V = 0 has no factor, V + eps I has: the layer itself computes with it."""
    norm = HypercomplexBatchNorm2d(4, eps=1e-4, algebra=QUATERNION).double().eval()
    norm.running_covariance.zero_()
    with torch.no_grad():
        matrix, _ = normalisation_map(norm, "norm")
    torch.testing.assert_close(matrix, 100 / 2 * torch.eye(4).double())  # gamma is I / sqrt(4)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 6, 3, padding=1),
        nn.Conv2d(4, 6, (4, 2), stride=2, bias=False),
        nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"),
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1),
    ],
    ids=repr,
)
def test_absorbing_is_exact_at_the_border(layer: nn.Module) -> None:
    layer, matrix, offset, image = layer.double(), randn(6, 6), randn(6), randn(1, 4, 6, 7)
    changed = layers.plain(layer)
    layers.follow(changed, matrix, offset)
    expected = F.conv2d(layer(image), matrix[..., None, None], offset)
    torch.testing.assert_close(changed(image), expected)


@pytest.mark.parametrize("order", [[2, 0, 3, 1], [0, 1, 1, 0]], ids=["permuted", "repeated"])
@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_reading_stored_channels_is_exact(kind: type[nn.Module], order: list[int]) -> None:
    layer = kind(4, 6, 3, padding=1).double()
    stored = randn(1, max(order) + 1, 5, 5)
    changed = layers.plain(layer)
    layers.read_stored(changed, torch.tensor(order))
    torch.testing.assert_close(changed(stored), layer(stored[:, order]))


def test_writing_stored_channels_is_exact() -> None:
    layer, image, order = nn.Conv2d(4, 3, 3).double(), randn(1, 4, 5, 5), torch.tensor([2, 0, 1])
    changed = layers.plain(layer)
    layers.write_stored(changed, order)
    torch.testing.assert_close(changed(image)[:, order], layer(image))


@every_algebra
def test_the_joined_order_is_that_of_the_join(algebra: Algebra) -> None:
    """Parts of different widths, one of them stored in an order of its own."""
    first, second, d = randn(1, 16, 1, 1), randn(1, 8, 1, 1), algebra.dimension
    mixed = torch.randperm(8)
    order = joined(d, [torch.arange(16), mixed])
    stored = torch.cat([first, second[:, mixed.argsort()]], 1)
    assert torch.equal(stored[:, order], join_components(algebra, first, second))

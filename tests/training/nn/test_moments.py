"""Mean and covariance of a batch against torch.cov, and the layouts in between."""

import pytest
import torch

from quatserve.training.nn.moments import (
    batch_mean,
    batch_moments,
    channel_blocks,
    maps_of,
    mix,
    mixing_matrix,
    products,
    total,
    values_of,
)
from tests.training.oracles import DTYPES, assert_close, components, correlated_batch, covariances, randn

every_dimension = pytest.mark.parametrize("dimension", [1, 2, 4, 8])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_dimension
def test_moments_are_those_of_torch(dimension: int, dtype: torch.dtype) -> None:
    x = correlated_batch(dimension, 3)
    values = values_of(x.to(dtype), dimension)
    mean, covariance, count = batch_moments(values)
    assert count == 6 * 5 * 7
    assert_close(mean, components(x, dimension).mean(2).T)
    assert_close(covariance, covariances(x, dimension))
    assert_close(batch_mean(values), mean.double())


@every_dimension
def test_a_mean_a_hundred_deviations_away_costs_no_precision(dimension: int) -> None:
    x = correlated_batch(dimension, 3, shape=(16, 16, 16))
    moved = (x + 100 * x.std()).float()
    _, covariance, _ = batch_moments(values_of(moved, dimension))
    assert_close(covariance, covariances(moved.double(), dimension))


@every_dimension
def test_values_and_images_are_two_views(dimension: int) -> None:
    x = correlated_batch(dimension, 3).contiguous(memory_format=torch.channels_last)
    values = values_of(x, dimension)
    assert values.data_ptr() == x.data_ptr()
    assert torch.equal(values[2, 3, 4], x[2, :, 3, 4].reshape(dimension, 3))
    images = maps_of(values)
    assert torch.equal(images, x)
    assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_dimension
def test_sums_and_maps(
    dimension: int, dtype: torch.dtype, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways to compute them, against one loop over channels."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiled)
    p, q = (values_of(correlated_batch(dimension, 3, seed=seed), dimension) for seed in (0, 20))
    matrices, offset = randn(3, dimension, dimension), randn(dimension, 3, seed=1)
    cast = (t.to(dtype) for t in (p, q, matrices, offset))
    p32, q32, matrices32, offset32 = cast
    for c in range(3):
        left, right = (v[..., c].reshape(-1, dimension) for v in (p, q))
        assert_close(total(p32)[:, c], left.sum(0))
        assert_close(products(p32, q32)[c] / 210, left.T @ right / 210)
        mixed = left @ matrices[c].T
        assert_close(mix(matrices32, p32, offset32)[..., c].reshape(-1, dimension), mixed + offset[:, c])
        assert_close(mix(matrices32, p32, q32)[..., c].reshape(-1, dimension), mixed + right)


def test_mixing_matrix_maps_each_channel_by_its_own_matrix() -> None:
    matrices, x = randn(3, 4, 4), randn(4, 3, seed=1)
    expected = torch.stack([matrices[c] @ x[:, c] for c in range(3)], 1)
    assert_close((mixing_matrix(matrices) @ x.flatten()).reshape(4, 3), expected)
    assert torch.equal(channel_blocks(mixing_matrix(matrices), 4), matrices)

"""Polar initialisation against SciPy's distributions and the moments worked out by hand."""

import math

import pytest
import torch
from scipy import stats
from torch import Generator

from quatserve.training.nn.algebra import ALGEBRAS, QUATERNION, REAL, Algebra
from quatserve.training.nn.conv import HypercomplexConv2d
from quatserve.training.nn.init import Criterion, polar_weight, sigma
from quatserve.training.nn.linear import HypercomplexLinear

COUNT = 200_000
SINGLE, DOUBLE = torch.empty(0, dtype=torch.float32), torch.empty(0, dtype=torch.float64)
LIKELY = 0.001  # a fixed seed: the test is certain, and a wrong law is a thousand times less likely still


def generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


@pytest.mark.parametrize("dimension", [1, 2, 4, 8])
def test_magnitude_is_chi(dimension: int) -> None:
    weight = polar_weight(dimension, (COUNT,), 0.3, like=DOUBLE, generator=generator())
    magnitude = torch.linalg.vector_norm(weight, dim=0)
    assert stats.kstest(magnitude.numpy(), stats.chi(df=dimension, scale=0.3).cdf).pvalue > LIKELY
    assert (magnitude**2).mean() == pytest.approx(dimension * 0.3**2, rel=0.01)


@pytest.mark.parametrize("dimension", [2, 4, 8])
def test_phase_is_uniform_and_halves_the_variance(dimension: int) -> None:
    """Var(real) = d sigma^2 / 2; the imaginary parts share the other half: 2 and 2/3 sigma^2 at d = 4."""
    weight = polar_weight(dimension, (COUNT,), 1.0, like=DOUBLE, generator=generator())
    imaginary = torch.linalg.vector_norm(weight[1:], dim=0)
    phase = torch.atan2(imaginary, weight[0])  # folded: |t|, uniform on [0, pi]
    assert stats.kstest(phase.numpy(), stats.uniform(0, math.pi).cdf).pvalue > LIKELY
    expected = [dimension / 2] + [dimension / 2 / (dimension - 1)] * (dimension - 1)
    assert weight.var(1).tolist() == pytest.approx(expected, rel=0.02)
    assert weight.mean(1).abs().max() < 5 * math.sqrt(dimension / 2 / COUNT)


def test_axis_is_uniform_on_the_sphere() -> None:
    """Archimedes: each coordinate of a uniform point of the sphere in three dimensions is uniform."""
    weight = polar_weight(4, (COUNT,), 1.0, like=DOUBLE, generator=generator())
    axis = weight[1:] / torch.linalg.vector_norm(weight[1:], dim=0)
    for coordinate in axis:
        assert stats.kstest(coordinate.numpy(), stats.uniform(-1, 2).cdf).pvalue > LIKELY


def test_magnitude_and_phase_are_independent() -> None:
    weight = polar_weight(4, (COUNT,), 1.0, like=DOUBLE, generator=generator())
    magnitude = torch.linalg.vector_norm(weight, dim=0)
    assert abs(stats.spearmanr(magnitude, weight[0] / magnitude).statistic) < 0.01


def test_real_is_plain_he_normal() -> None:
    torch.manual_seed(0)
    weight = HypercomplexConv2d(64, 256, 3, algebra=REAL).weight.detach().double().flatten()
    assert stats.kstest(weight.numpy(), stats.norm(scale=math.sqrt(2 / (64 * 9))).cdf).pvalue > LIKELY


@pytest.mark.parametrize(("criterion", "variance"), [("he", 2 / (16 * 9)), ("glorot", 2 / (16 * 9 + 64 * 9))])
@pytest.mark.parametrize("algebra", ALGEBRAS.values(), ids=lambda algebra: algebra.name)
def test_criteria_count_hypercomplex_units(algebra: Algebra, criterion: Criterion, variance: float) -> None:
    """Var(W) = E|W|^2 is 2 / n_in or 2 / (n_in + n_out), for 16 -> 64 hypercomplex channels of 3 x 3."""
    torch.manual_seed(0)
    d = algebra.dimension
    layer = HypercomplexConv2d(16 * d, 64 * d, 3, criterion=criterion, algebra=algebra)
    squares = (layer.weight.detach().unflatten(0, (d, -1)) ** 2).sum(0)
    assert squares.mean() == pytest.approx(variance, rel=0.05)
    assert d * sigma(criterion, d, 16 * 9, 64 * 9) ** 2 == pytest.approx(variance)


def test_the_papers_sigmas() -> None:
    assert sigma("glorot", 4, 30, 50) == pytest.approx(1 / math.sqrt(2 * (30 + 50)))
    assert sigma("he", 4, 30, 50) == pytest.approx(1 / math.sqrt(2 * 30))


def test_torchs_generator_decides() -> None:
    first = polar_weight(4, (5, 7), 1.0, like=SINGLE, generator=generator(3))
    assert torch.equal(first, polar_weight(4, (5, 7), 1.0, like=SINGLE, generator=generator(3)))
    assert not torch.equal(first, polar_weight(4, (5, 7), 1.0, like=SINGLE, generator=generator(4)))
    torch.manual_seed(3)
    layers = [HypercomplexLinear(8, 8, algebra=QUATERNION) for _ in range(2)]
    torch.manual_seed(3)
    again = [HypercomplexLinear(8, 8, algebra=QUATERNION) for _ in range(2)]
    assert torch.equal(layers[0].weight, again[0].weight)
    assert torch.equal(layers[1].weight, again[1].weight)
    assert not torch.equal(layers[0].weight, layers[1].weight)  # one seed, yet no two layers alike

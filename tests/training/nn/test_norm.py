"""Whitening against its definition, nn.BatchNorm2d and torch.linalg, also where others break."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quatserve.training.nn.algebra import ALGEBRAS, COMPLEX, OCTONION, QUATERNION, REAL, Algebra
from quatserve.training.nn.norm import (
    HypercomplexBatchNorm1d,
    HypercomplexBatchNorm2d,
    HypercomplexBatchNorm3d,
    packing,
)
from tests.training.oracles import (
    DTYPES,
    assert_close,
    components,
    correlated_batch,
    covariances,
    randn,
    whitened,
    with_eps,
)

EPS = 1e-4
every_algebra = pytest.mark.parametrize("algebra", ALGEBRAS.values(), ids=lambda algebra: algebra.name)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def norm(
    algebra: Algebra, channels: int = 3, *, seed: int | None = None, **options: Any
) -> HypercomplexBatchNorm2d:
    """In float64; with a seed, gamma and beta are no longer what they are at first."""
    layer = HypercomplexBatchNorm2d(channels * algebra.dimension, algebra=algebra, **options).double()
    if seed is not None:
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(0.3 * randn(*parameter.shape, seed=seed))
    return layer


def with_identity_gamma(layer: HypercomplexBatchNorm2d) -> HypercomplexBatchNorm2d:
    d = layer.algebra.dimension
    rows, columns = torch.triu_indices(d, d)
    with torch.no_grad():
        assert layer.gamma is not None
        layer.gamma.copy_((rows == columns).expand_as(layer.gamma))
    return layer


def symmetric(packed: Tensor, d: int) -> Tensor:
    """(C, d(d+1)/2) upper triangles, row by row -> (C, d, d)."""
    full = torch.zeros(len(packed), d, d, dtype=packed.dtype)
    position = 0
    for a in range(d):
        for b in range(a, d):
            full[:, a, b] = full[:, b, a] = packed[:, position]
            position += 1
    return full


# What the layer computes


@every_dtype
@every_algebra
def test_training_output_is_the_definition(algebra: Algebra, dtype: torch.dtype) -> None:
    layer, x = norm(algebra, seed=7), correlated_batch(algebra.dimension, 3)
    assert layer.gamma is not None
    gamma = symmetric(layer.gamma.detach(), algebra.dimension)
    expected = whitened(x, algebra.dimension, gamma, layer.beta.detach(), EPS)
    y = layer.to(dtype)(x.to(dtype))
    assert y.dtype == dtype
    assert_close(y, expected)


@every_algebra
def test_output_is_white(algebra: Algebra) -> None:
    """With gamma = I the covariance of the output is W V W^T: I, but for eps; and its mean is beta."""
    d, x = algebra.dimension, correlated_batch(algebra.dimension, 3, shape=(16, 8, 8))
    y = with_identity_gamma(norm(algebra))(x)
    V = covariances(x, d)
    W = torch.linalg.inv(torch.linalg.cholesky(V + EPS * torch.eye(d).double()))
    assert_close(covariances(y, d), W @ V @ W.mT)
    torch.testing.assert_close(covariances(y, d), torch.eye(d).double().repeat(3, 1, 1), atol=0.05, rtol=0)
    assert_close(components(y, d).mean(2), torch.zeros(3, d))


@every_algebra
def test_a_fresh_layer_gives_unit_modulus(algebra: Algebra) -> None:
    """gamma starts at 1/sqrt(d): E|y|^2 = 1, as the paper wants."""
    x = 10 * correlated_batch(algebra.dimension, 3)
    squares = components(norm(algebra)(x), algebra.dimension).square().sum(1)
    torch.testing.assert_close(squares.mean(1), torch.ones(3).double(), atol=0.01, rtol=0)


@settings(max_examples=30)
@given(d=st.sampled_from([2, 4, 8]), scale=st.floats(-3, 3), seed=st.integers(0, 10_000))
def test_scale_and_rotation_of_the_input_do_not_survive(d: int, scale: float, seed: int) -> None:
    """Cov(y) = I for any full-rank mixing of the components, over six decades of scale."""
    algebra = next(a for a in ALGEBRAS.values() if a.dimension == d)
    x = correlated_batch(d, 2, shape=(8, 6, 6), seed=seed) * 10**scale
    y = with_identity_gamma(norm(algebra, 2))(x)
    V = covariances(x, d)
    W = torch.linalg.inv(torch.linalg.cholesky(with_eps(V, EPS)))
    torch.testing.assert_close(covariances(y, d), W @ V @ W.mT, rtol=1e-6, atol=1e-6)


@every_dtype
def test_real_is_torchs_batch_norm(dtype: torch.dtype) -> None:
    ours, theirs = norm(REAL, 5, seed=3).to(dtype), nn.BatchNorm2d(5, eps=EPS).to(dtype)
    with torch.no_grad():
        assert ours.gamma is not None
        theirs.weight.copy_(ours.gamma.flatten())
        theirs.bias.copy_(ours.beta.flatten())
    x = correlated_batch(1, 5).to(dtype)
    assert_close(ours(x), theirs(x).double())
    theirs.running_mean, theirs.running_var = ours.running_mean.flatten(), ours.running_covariance.flatten()
    assert_close(ours.eval()(x), theirs.eval()(x).double())


@every_algebra
def test_evaluation_is_the_affine_map_of_the_running_statistics(algebra: Algebra) -> None:
    d, layer = algebra.dimension, norm(algebra, seed=5)
    layer.running_mean.copy_(randn(d, 3, seed=1))
    layer.running_covariance.copy_(covariances(correlated_batch(d, 3, seed=2), d))
    x = correlated_batch(d, 3)
    M, b = layer.eval().affine_map()
    assert layer.gamma is not None
    L = torch.linalg.cholesky(layer.running_covariance + EPS * torch.eye(d).double())
    assert_close(M @ L, symmetric(layer.gamma.detach(), d))  # M = gamma L^-1
    values = M @ (components(x, d) - layer.running_mean.T[..., None]) + layer.beta.T[..., None]
    before = layer.running_mean.clone(), layer.running_covariance.clone()
    assert_close(components(layer(x), d), values)
    assert_close(components(layer(x), d), M @ components(x, d) + b.T[..., None])
    assert torch.equal(layer.running_mean, before[0])
    assert torch.equal(layer.running_covariance, before[1])


@every_dtype
@every_algebra
def test_running_statistics(algebra: Algebra, dtype: torch.dtype) -> None:
    """Exponential averages with momentum 0.1 of the batch's mean and biased covariance, from 0 and I."""
    d, layer = algebra.dimension, norm(algebra).to(dtype)
    mean, covariance = torch.zeros(d, 3).double(), torch.eye(d).double().repeat(3, 1, 1)
    for seed in range(3):
        x = correlated_batch(d, 3, seed=10 * seed)
        layer(x.to(dtype))
        mean = 0.9 * mean + 0.1 * components(x, d).mean(2).T
        covariance = 0.9 * covariance + 0.1 * covariances(x, d)
    assert_close(layer.running_mean, mean)
    assert_close(layer.running_covariance, covariance)


def test_parameters_and_statistics_as_the_paper_counts_them() -> None:
    layer = HypercomplexBatchNorm2d(32, algebra=QUATERNION)
    assert layer.gamma is not None
    assert layer.gamma.shape == (8, 10)
    assert layer.gamma[0].tolist() == [0.5, 0, 0, 0, 0.5, 0, 0, 0.5, 0, 0.5]
    assert layer.beta.shape == layer.running_mean.shape == (4, 8)
    assert layer.running_covariance.shape == (8, 4, 4)
    assert list(layer.state_dict()) == ["beta", "gamma", "running_mean", "running_covariance"]
    assert (layer.eps, layer.momentum) == (1e-4, 0.1)
    assert packing(3) == [[0, 1, 2], [1, 3, 4], [2, 4, 5]]


# Gradients


@every_algebra
def test_gradcheck_in_training_mode(algebra: Algebra) -> None:
    layer = norm(algebra, 2, seed=4)
    x = correlated_batch(algebra.dimension, 2, shape=(2, 2, 3)).requires_grad_()

    def run(x: Tensor, beta: Tensor, gamma: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"beta": beta, "gamma": gamma}, (x,))  # type: ignore[no-any-return]

    assert layer.gamma is not None
    assert torch.autograd.gradcheck(run, (x, layer.beta, layer.gamma))


@pytest.mark.parametrize("training", [True, False])
@every_dtype
@every_algebra
def test_gradients_are_those_of_the_definition(algebra: Algebra, dtype: torch.dtype, training: bool) -> None:
    d, layer = algebra.dimension, norm(algebra, seed=4).train(training)
    assert layer.gamma is not None
    x, weights = correlated_batch(d, 3), randn(6, 3 * d, 5, 7, seed=9)
    leaves = [t.detach().clone().requires_grad_() for t in (x, layer.gamma, layer.beta)]
    gamma = symmetric_with_gradient(leaves[1], d)
    if training:
        y = whitened(leaves[0], d, gamma, leaves[2], EPS)
    else:
        scale = gamma / math.sqrt(1 + EPS)  # fresh statistics: mean 0, covariance I
        y = torch.einsum("cab,nbchw->nachw", scale, leaves[0].unflatten(1, (d, 3))).flatten(1, 2)
        y = y + leaves[2].reshape(-1, 1, 1)
    expected = torch.autograd.grad((y * weights).sum(), leaves)
    ours = x.to(dtype).requires_grad_()
    layer = layer.to(dtype)
    assert layer.gamma is not None
    actual = torch.autograd.grad((layer(ours) * weights.to(dtype)).sum(), [ours, layer.gamma, layer.beta])
    for a, b in zip(actual, expected, strict=True):
        assert_close(a / b.abs().max().to(dtype), b / b.abs().max())


def symmetric_with_gradient(packed: Tensor, d: int) -> Tensor:
    entries = {tuple(sorted((a, b))) for a in range(d) for b in range(d)}
    order = {pair: position for position, pair in enumerate(sorted(entries))}
    return torch.stack(
        [torch.stack([packed[:, order[min(a, b), max(a, b)]] for b in range(d)], -1) for a in range(d)], -2
    )


@every_algebra
def test_a_constant_shift_of_the_input_has_no_gradient(algebra: Algebra) -> None:
    x = correlated_batch(algebra.dimension, 2).requires_grad_()
    (norm(algebra, 2, seed=1)(x) * randn(*x.shape, seed=3)).sum().backward()
    assert x.grad is not None
    assert_close(x.grad.sum((0, 2, 3)), torch.zeros(2 * algebra.dimension))


# Where others break


@every_algebra
def test_a_mean_a_hundred_deviations_away(algebra: Algebra) -> None:
    x = correlated_batch(algebra.dimension, 3, shape=(8, 16, 16))
    layer = norm(algebra).float()
    far = (x + 100 * x.std()).float()
    y = layer(far)
    expected = norm(algebra)(far.double())
    torch.testing.assert_close(y.double(), expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("algebra", [COMPLEX, QUATERNION, OCTONION], ids=lambda algebra: algebra.name)
def test_duplicated_channels(algebra: Algebra, scale: float) -> None:
    """Every component the same signal: V has rank one. One direction is whitened, nothing blows up."""
    d = algebra.dimension
    signal = randn(8, 1, 3, 8, 8, seed=2)
    x = (scale * signal.expand(8, d, 3, 8, 8).flatten(1, 2)).float().requires_grad_()
    layer = with_identity_gamma(norm(algebra)).float()
    y = layer(x)
    y.square().mean().backward()
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    values = components(y.detach(), d).double()
    power = (scale * signal).float().double().var((0, 3, 4), correction=0).flatten()
    assert_close(values[:, 0].var(1, correction=0).float(), power / (power + EPS))
    assert values[:, 1:].abs().max() < 1


@every_algebra
def test_constant_channels(algebra: Algebra) -> None:
    d, x = algebra.dimension, correlated_batch(algebra.dimension, 3).float()
    x[:, ::3] = 5.0  # the first hypercomplex channel, all components
    x[:, 1] = -7.0  # the real part of the second
    x.requires_grad_()
    y = norm(algebra).float()(x)
    y.square().sum().backward()
    assert_close(y[:, ::3], torch.zeros(6, d, 5, 7))
    assert_close(y[:, 1], torch.zeros(6, 5, 7))
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 7), (2, 1, 1), (3, 1, 1)])
@every_algebra
def test_small_batches(algebra: Algebra, shape: tuple[int, int, int]) -> None:
    """One image, one pixel: fewer values than components leave directions without variance."""
    layer, x = norm(algebra, seed=2), correlated_batch(algebra.dimension, 3, shape=shape)
    assert layer.gamma is not None
    gamma = symmetric(layer.gamma.detach(), algebra.dimension)
    torch.testing.assert_close(
        layer(x), whitened(x, algebra.dimension, gamma, layer.beta, EPS), rtol=1e-6, atol=1e-6
    )
    x32 = x.float().requires_grad_()
    layer.float()(x32).square().sum().backward()
    assert x32.grad is not None
    assert x32.grad.isfinite().all()
    if shape == (1, 1, 1):
        assert_close(layer(x32).flatten(), layer.beta.flatten())


@every_algebra
def test_statistics_stay_in_fp32_under_autocast(algebra: Algebra) -> None:
    x = (correlated_batch(algebra.dimension, 3) + 30).bfloat16()
    layer = norm(algebra, seed=1).float()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    expected = norm(algebra, seed=1)(x.double())
    torch.testing.assert_close(y.double(), expected, atol=0.05, rtol=0.01)  # one rounding to bfloat16
    assert layer.running_covariance.dtype == torch.float32
    wanted = 0.9 * torch.eye(algebra.dimension) + 0.1 * covariances(x.double(), algebra.dimension)
    assert_close(layer.running_covariance, wanted)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch itself
@every_algebra
def test_gradients_stay_in_fp32_where_autocast_and_layer_are_compiled(algebra: Algebra) -> None:
    """The compiler gives the backward pass the autocast of the forward pass's caller."""
    x = correlated_batch(algebra.dimension, 3).float()
    found = []
    for compiled in (False, True):
        layer = norm(algebra, seed=1).float()
        model = torch.compile(layer, backend="aot_eager", dynamic=False) if compiled else layer
        inputs = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = model(inputs)
        y.backward(randn(*x.shape, seed=2, dtype=torch.float32))
        assert layer.gamma is not None
        found.append((inputs.grad, layer.gamma.grad, layer.beta.grad))
    for eager, traced in zip(*found, strict=True):
        torch.testing.assert_close(traced, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
@every_algebra
def test_channels_last_in_is_channels_last_out(algebra: Algebra, training: bool) -> None:
    x = correlated_batch(algebra.dimension, 3)
    laid_out = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    weights = randn(*x.shape, seed=8).contiguous(memory_format=torch.channels_last)
    y = norm(algebra, seed=1).train(training)(laid_out)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert_close(y, norm(algebra, seed=1).train(training)(x))
    (y * weights).sum().backward()
    assert laid_out.grad is not None
    assert laid_out.grad.is_contiguous(memory_format=torch.channels_last)


# Options


@every_algebra
def test_without_affine_the_output_is_white(algebra: Algebra) -> None:
    x, d = correlated_batch(algebra.dimension, 3), algebra.dimension
    layer = norm(algebra, affine=False)
    assert not list(layer.parameters())
    assert_close(layer(x), with_identity_gamma(norm(algebra))(x))
    matrix, offset = layer.eval().affine_map()
    regular = layer.running_covariance + EPS * torch.eye(d).double()
    assert_close(matrix @ regular @ matrix.mT, torch.eye(d).expand_as(matrix))
    assert_close(offset, -torch.einsum("cab,bc->ac", matrix, layer.running_mean))


@pytest.mark.parametrize("whiten", [True, False])
@every_algebra
def test_without_running_statistics_evaluation_is_by_the_batch(algebra: Algebra, whiten: bool) -> None:
    x = correlated_batch(algebra.dimension, 3)
    layer = norm(algebra, seed=3, track_running_stats=False, whiten=whiten)
    expected = norm(algebra, seed=3, whiten=whiten)(x)
    assert_close(layer(x), expected)
    assert_close(layer.eval()(x), expected)
    with pytest.raises(ValueError, match="without running statistics"):
        layer.affine_map()


@every_algebra
def test_momentum_none_averages_all_batches(algebra: Algebra) -> None:
    d, layer = algebra.dimension, norm(algebra, momentum=None)
    batches = [correlated_batch(d, 3, seed=10 * seed) for seed in range(3)]
    for x in batches:
        layer(x)
    means = torch.stack([components(x, d).mean(2).T for x in batches])
    assert_close(layer.running_mean, means.mean(0))
    assert_close(layer.running_covariance, torch.stack([covariances(x, d) for x in batches]).mean(0))
    assert layer.state_dict()["num_batches_tracked"] == 3
    layer.reset_running_stats()
    assert (layer.num_batches_tracked, layer.running_mean.abs().max()) == (0, 0)


@pytest.mark.parametrize("shape", [(210,), (6, 35), (6, 5, 7), (3, 2, 5, 7)], ids=len)
@every_algebra
def test_arrangement_of_the_values_does_not_matter(algebra: Algebra, shape: tuple[int, ...]) -> None:
    kind = {1: HypercomplexBatchNorm1d, 2: HypercomplexBatchNorm1d, 3: HypercomplexBatchNorm2d}
    layer_type = kind.get(len(shape), HypercomplexBatchNorm3d)
    x = correlated_batch(algebra.dimension, 3)
    layer = layer_type(3 * algebra.dimension, algebra=algebra).double()
    values = x.movedim(1, -1)
    for training in (True, False):
        expected = norm(algebra).train(training)(x).movedim(1, -1).reshape(210, -1)
        y = layer.train(training)(values.reshape(*shape, -1).movedim(-1, 1))
        layer.reset_running_stats()
        assert_close(y.movedim(1, -1).reshape(210, -1), expected)


def test_half_precision_parameters() -> None:
    """Computed in fp32, as torch's norms do."""
    layer = HypercomplexBatchNorm2d(12, algebra=QUATERNION, dtype=torch.bfloat16)
    x = correlated_batch(4, 3).bfloat16()
    for training in (True, False):
        y = layer.train(training)(x)
        assert y.dtype == torch.bfloat16
        assert y.isfinite().all()


# Without whitening: the authors' road networks


@every_algebra
def test_without_whitening(algebra: Algebra) -> None:
    """d > 1 only centres and adds beta; d = 1 divides by the deviation; no gamma anywhere."""
    d, layer, x = (
        algebra.dimension,
        norm(algebra, seed=6, whiten=False),
        correlated_batch(algebra.dimension, 3),
    )
    names = {"beta", "running_mean"} | ({"running_covariance"} if d == 1 else set())
    assert set(layer.state_dict()) == names
    assert layer.gamma is None
    centred = x - x.mean((0, 2, 3), keepdim=True)
    scale = (centred.square().mean((0, 2, 3), keepdim=True) + EPS).sqrt() if d == 1 else 1
    expected = centred / scale + layer.beta.reshape(-1, 1, 1)
    assert_close(layer(x), expected)
    assert_close(layer.running_mean, 0.1 * components(x, d).mean(2).T)
    running = layer.eval()(x)
    shift = layer.beta - layer.running_mean / (
        1 if d > 1 else layer.running_covariance.flatten().add(EPS).sqrt()
    )
    factor = layer.running_covariance.flatten().add(EPS).rsqrt().reshape(-1, 1, 1) if d == 1 else 1
    assert_close(running, x * factor + shift.reshape(-1, 1, 1))


@every_algebra
def test_gradcheck_without_whitening(algebra: Algebra) -> None:
    layer = norm(algebra, 1, seed=6, whiten=False)
    x = correlated_batch(algebra.dimension, 1, shape=(2, 2, 2)).requires_grad_()

    def run(x: Tensor, beta: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"beta": beta}, (x,))  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(run, (x, layer.beta))

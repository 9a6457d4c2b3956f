"""The whitening matrix against torch.linalg, and where there is none."""

import math
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd

from quatserve.training.nn.algebra import ALGEBRAS, COMPLEX, QUATERNION, Algebra
from quatserve.training.nn.norm import HypercomplexBatchNorm2d
from quatserve.training.nn.whitening import NotPositiveDefiniteError, check_covariance, whitening_matrix
from tests.training.oracles import (
    DTYPES,
    assert_close,
    correlated_batch,
    covariances,
    randn,
    with_eps,
)

EPS = 1e-4
SEEDS = st.integers(0, 9999)
LIBRARY = ("aten.mm", "aten.bmm", "aten.addmm", "linalg", "cholesky", "exact_matmul")
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@every_dtype
@pytest.mark.parametrize("d", [1, 2, 3, 4, 8])
def test_whitening_matrix(d: int, dtype: torch.dtype) -> None:
    """W (V + eps I) W^T = I with W lower triangular: the inverse of torch's own Cholesky factor."""
    V = covariances(correlated_batch(d, 5, shape=(4, 8, 8)), d).to(dtype)
    W = whitening_matrix(V, EPS)
    regular = V + EPS * torch.eye(d, dtype=dtype)
    assert_close(W @ regular @ W.mT, torch.eye(d).expand_as(V))
    assert_close(W, torch.linalg.inv(torch.linalg.cholesky(regular.double())))
    assert torch.equal(W, W.tril())


@given(d=st.sampled_from([1, 2, 4, 8]), scale=st.floats(-6, 6), rank=st.integers(1, 8), seed=SEEDS)
def test_any_scale_and_rank(d: int, scale: float, rank: int, seed: int) -> None:
    factors = randn(3, d, rank, seed=seed) * 10**scale
    V = factors @ factors.mT
    W = whitening_matrix(V, EPS)
    identity = torch.eye(d, dtype=torch.float64).expand_as(V)
    torch.testing.assert_close(W @ with_eps(V, EPS) @ W.mT, identity, rtol=0, atol=1e-6)
    single = whitening_matrix(V.float(), EPS)
    assert single.isfinite().all()


@pytest.mark.parametrize("variance", [1.0, 1e3, 1e6])
def test_duplicated_channels_are_whitened_alike_in_every_precision(variance: float) -> None:
    """What was trained in fp32 is folded and proven in float64: it must be the same map there."""
    covariance = variance * torch.ones(1, 4, 4)
    single, double = whitening_matrix(covariance, EPS), whitening_matrix(covariance.double(), EPS)
    torch.testing.assert_close(single.double(), double, rtol=0.1, atol=1e-3 * float(double.abs().max()))


@every_dtype
@given(d=st.sampled_from([1, 2, 4]), scale=st.floats(-3, 3), seed=SEEDS)
def test_pivots_are_bounded_for_any_matrix(dtype: torch.dtype, d: int, scale: float, seed: int) -> None:
    """No deviation is taken for less than sqrt(eps), nor any pivot for a square root of a negative number."""
    A = (randn(5, d, d, seed=seed) * 10**scale).to(dtype)
    pivots = whitening_matrix(A + A.mT, EPS).diagonal(dim1=1, dim2=2) ** -2
    assert pivots.min() >= EPS * (1 - 1e-5)
    assert pivots.isfinite().all()


@pytest.mark.parametrize("d", [2, 4, 8])
def test_what_is_not_a_number_is_not_hidden(d: int) -> None:
    V = torch.eye(d).repeat(3, 1, 1)
    V[1, 1, 0] = V[1, 0, 1] = math.nan
    finite = whitening_matrix(V, EPS).isfinite().flatten(1).all(1)
    assert finite.tolist() == [True, False, True]


def test_octonions_without_a_factor_give_nan_in_their_channel() -> None:
    V = torch.eye(8).repeat(3, 1, 1)
    V[1, 5, 5] = -1
    W = whitening_matrix(V, EPS)
    assert W[1].isnan().all()
    assert W[[0, 2]].isfinite().all()


@pytest.mark.parametrize("d", [1, 2, 4, 8])
def test_the_check_names_the_channel(d: int) -> None:
    V = torch.eye(d).repeat(3, 1, 1)
    check_covariance(V, EPS)
    check_covariance(0 * V, EPS)  # a dead channel: eps is enough
    V[2, 0, 0] = -0.5
    message = r"^covariance of channel 2 is not positive definite \(eigenvalue -0\.5, eps 0\.0001\)$"
    with pytest.raises(NotPositiveDefiniteError, match=message):
        check_covariance(V, EPS)
    V[2, 0, 0] = math.nan
    with pytest.raises(NotPositiveDefiniteError, match=r"channel 2 .*eigenvalue nan"):
        check_covariance(V, EPS)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch itself
@pytest.mark.parametrize("algebra", [ALGEBRAS["real"], COMPLEX, QUATERNION], ids=lambda algebra: algebra.name)
def test_a_compiled_step_calls_no_library(algebra: Algebra) -> None:
    """No factorisation, no solve and no matrix product, which TF32 could round: forward and backward."""
    called: set[str] = set()

    def record(graph: fx.GraphModule, _: Any) -> Any:
        called.update(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    layer = HypercomplexBatchNorm2d(3 * algebra.dimension, algebra=algebra)
    step = torch.compile(layer, backend=aot_autograd(fw_compiler=record), fullgraph=True)
    x: Tensor = correlated_batch(algebra.dimension, 3).float().requires_grad_()
    step(x).square().sum().backward()
    assert any("rsqrt" in name for name in called)
    assert not [name for name in called if any(word in name for word in LIBRARY)]

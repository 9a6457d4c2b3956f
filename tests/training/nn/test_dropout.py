"""Dropout takes whole values, keeps the mean, and leaves evaluation alone."""

import pytest
import torch

from quatserve.training.nn.algebra import ALGEBRAS, QUATERNION, Algebra, ChannelError
from quatserve.training.nn.dropout import HypercomplexDropout
from tests.training.oracles import randn

every_algebra = pytest.mark.parametrize("algebra", ALGEBRAS.values(), ids=lambda algebra: algebra.name)


@every_algebra
@pytest.mark.parametrize("dim", [1, -1])
def test_all_components_of_a_value_share_one_fate(algebra: Algebra, dim: int) -> None:
    d = algebra.dimension
    x = randn(50, 5 * d, 6, 5 * d)
    factors = (HypercomplexDropout(0.3, dim, algebra=algebra)(x) / x).unflatten(dim, (d, 5))
    component = factors.select(1 if dim == 1 else 3, 0)
    assert all(torch.allclose(component, other) for other in factors.unbind(1 if dim == 1 else 3))
    zeros = (component == 0).double().mean().item()
    assert zeros == pytest.approx(0.3, abs=0.03)
    assert torch.allclose(component[component != 0], torch.tensor(1 / 0.7).double())


def test_evaluation_changes_nothing() -> None:
    x = randn(2, 8, 3)
    assert torch.equal(HypercomplexDropout(0.9, algebra=QUATERNION).eval()(x), x)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"^p 1\.5 is no probability"):
        HypercomplexDropout(1.5, algebra=QUATERNION)
    with pytest.raises(ChannelError, match="6 channels"):
        HypercomplexDropout(algebra=QUATERNION)(torch.ones(1, 6))

"""The linear layer against hypercomplex products summed in plain loops."""

import pytest
import torch

from quatserve.training.nn.algebra import ALGEBRAS, QUATERNION, Algebra
from quatserve.training.nn.linear import HypercomplexLinear
from tests.training.oracles import DTYPES, assert_close, multiply, randn

every_algebra = pytest.mark.parametrize("algebra", ALGEBRAS.values(), ids=lambda algebra: algebra.name)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@every_dtype
@every_algebra
def test_linear_is_the_sum_of_products(algebra: Algebra, dtype: torch.dtype) -> None:
    d = algebra.dimension
    layer = HypercomplexLinear(3 * d, 2 * d, dtype=dtype, algebra=algebra)
    with torch.no_grad():
        assert layer.bias is not None
        layer.bias.copy_(randn(2 * d, seed=5))
    h = randn(4, 3 * d, dtype=dtype)
    weight = layer.weight.detach().double().unflatten(0, (d, 2))
    expected = layer.bias.detach().double().repeat(4, 1)
    for n, row in enumerate(h.double().unflatten(1, (d, 3))):
        for o in range(2):
            for i in range(3):
                product = multiply(weight[:, o, i].tolist(), row[:, i].tolist())
                expected[n, o::2] += torch.tensor(product, dtype=expected.dtype)
    assert_close(layer(h), expected)


def test_linear_without_bias() -> None:
    layer = HypercomplexLinear(8, 4, bias=False, algebra=QUATERNION)
    assert layer.bias is None
    assert layer(torch.zeros(1, 8)).abs().sum() == 0


def test_any_number_of_leading_axes() -> None:
    layer, h = HypercomplexLinear(8, 12, algebra=QUATERNION).double(), randn(2, 3, 5, 8)
    assert_close(layer(h).flatten(0, 2), layer(h.flatten(0, 2)))
    assert layer(h[0, 0, 0]).shape == (12,)

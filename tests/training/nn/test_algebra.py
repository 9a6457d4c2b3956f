"""The algebras against Hamilton's table, the paper's matrix, Python's complex numbers, SciPy's rotations."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from quatserve.training.nn.algebra import (
    ALGEBRAS,
    COMPLEX,
    OCTONION,
    QUATERNION,
    REAL,
    Algebra,
    ChannelError,
    find_algebra,
)
from tests.training.oracles import DTYPES, assert_close, multiply, randn

every_algebra = pytest.mark.parametrize("algebra", ALGEBRAS.values(), ids=lambda algebra: algebra.name)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
one, i, j, k = torch.eye(4, dtype=torch.float64)


def numbers(dimension: int) -> st.SearchStrategy[Tensor]:
    parts = st.lists(st.floats(-8, 8), min_size=dimension, max_size=dimension)
    return parts.map(lambda values: torch.tensor(values, dtype=torch.float64))


def test_dimensions() -> None:
    assert {name: algebra.dimension for name, algebra in ALGEBRAS.items()} == {
        "real": 1,
        "complex": 2,
        "quaternion": 4,
        "octonion": 8,
    }


def test_hamiltons_table() -> None:
    """i^2 = j^2 = k^2 = ijk = -1, and equation 3 of the paper."""
    table = [(i, j, k), (j, k, i), (k, i, j), (j, i, -k), (k, j, -i), (i, k, -j)]
    table += [(i, i, -one), (j, j, -one), (k, k, -one), (one, i, i), (k, one, k)]
    for p, q, expected in table:
        assert torch.equal(QUATERNION.product(p, q), expected)
    assert torch.equal(QUATERNION.product(QUATERNION.product(i, j), k), -one)


def test_left_matrix_is_equation_4() -> None:
    a, b, c, d = 2.0, 3.0, 5.0, 7.0
    expected = [[a, -b, -c, -d], [b, a, -d, c], [c, d, a, -b], [d, -c, b, a]]
    assert QUATERNION.left_matrix(torch.tensor([a, b, c, d])).tolist() == expected


def test_complex_product_is_pythons() -> None:
    p, q = torch.view_as_complex(randn(20, 2)), torch.view_as_complex(randn(20, 2, seed=1))
    ours = COMPLEX.product(torch.view_as_real(p), torch.view_as_real(q))
    assert_close(ours, torch.view_as_real(p * q))


def test_unit_quaternions_compose_as_rotations() -> None:
    p, q = (torch.nn.functional.normalize(randn(20, 4, seed=seed), dim=-1) for seed in (0, 1))
    scipys = Rotation.from_quat(p.numpy(), scalar_first=True) * Rotation.from_quat(
        q.numpy(), scalar_first=True
    )
    ours = Rotation.from_quat(QUATERNION.product(p, q).numpy(), scalar_first=True)
    np.testing.assert_allclose(ours.as_matrix(), scipys.as_matrix(), atol=1e-12)


@every_algebra
def test_structure_is_the_cayley_dickson_recursion(algebra: Algebra) -> None:
    basis = torch.eye(algebra.dimension, dtype=torch.float64)
    for p in basis:
        for q in basis:
            assert algebra.product(p, q).tolist() == multiply(p.tolist(), q.tolist())


@every_dtype
@every_algebra
def test_left_matrix_multiplies(algebra: Algebra, dtype: torch.dtype) -> None:
    p, q = (randn(3, 5, algebra.dimension, seed=seed, dtype=dtype) for seed in (0, 1))
    product = algebra.product(p, q)
    assert product.dtype == dtype
    assert_close((algebra.left_matrix(p) @ q[..., None])[..., 0], product)


@every_algebra
@given(data=st.data())
def test_norm_is_multiplicative(algebra: Algebra, data: st.DataObject) -> None:
    p, q = (data.draw(numbers(algebra.dimension)) for _ in range(2))
    assert_close(algebra.norm(algebra.product(p, q)), algebra.norm(p) * algebra.norm(q))


@every_algebra
@given(data=st.data())
def test_conjugate(algebra: Algebra, data: st.DataObject) -> None:
    """p p* = |p|^2, real; (p q)* = q* p*."""
    p, q = (data.draw(numbers(algebra.dimension)) for _ in range(2))
    square = torch.zeros(algebra.dimension, dtype=torch.float64)
    square[0] = (p**2).sum()
    assert_close(algebra.product(p, algebra.conjugate(p)), square)
    left = algebra.conjugate(algebra.product(p, q))
    assert_close(left, algebra.product(algebra.conjugate(q), algebra.conjugate(p)))


@pytest.mark.parametrize("algebra", [REAL, COMPLEX, QUATERNION], ids=lambda algebra: algebra.name)
@given(data=st.data())
def test_associative_to_quaternions(algebra: Algebra, data: st.DataObject) -> None:
    p, q, r = (data.draw(numbers(algebra.dimension)) for _ in range(3))
    left = algebra.product(algebra.product(p, q), r)
    assert_close(left, algebra.product(p, algebra.product(q, r)))


def test_octonions_are_not_associative() -> None:
    p, q, r = torch.eye(8, dtype=torch.float64)[[1, 2, 4]]
    left = OCTONION.product(OCTONION.product(p, q), r)
    assert torch.equal(left, -OCTONION.product(p, OCTONION.product(q, r)))
    assert left.abs().sum() == 1


@given(p=numbers(8), q=numbers(8))
def test_octonions_are_alternative(p: Tensor, q: Tensor) -> None:
    """Any two of them associate: p (p q) = (p p) q and (q p) p = q (p p)."""
    product = OCTONION.product
    assert_close(product(p, product(p, q)), product(product(p, p), q))
    assert_close(product(product(q, p), p), product(q, product(p, p)))


def test_commutative_to_complex_only() -> None:
    for algebra in ALGEBRAS.values():
        p, q = (randn(algebra.dimension, seed=seed) for seed in (0, 1))
        commutes = torch.allclose(algebra.product(p, q), algebra.product(q, p))
        assert commutes == (algebra.dimension <= 2)


@pytest.mark.parametrize(("algebra", "channels"), [("quaternion", 30), ("octonion", 12), ("complex", 0)])
def test_channels_that_do_not_divide_are_named(algebra: str, channels: int) -> None:
    chosen = find_algebra(algebra)
    message = rf"^{channels} channels .*{algebra}.* multiple of {chosen.dimension}$"
    with pytest.raises(ChannelError, match=message):
        chosen.channels(channels)
    assert chosen.channels(3 * chosen.dimension) == 3


def test_algebras_are_found_by_name() -> None:
    assert find_algebra("octonion") is find_algebra(OCTONION) is OCTONION
    with pytest.raises(ValueError, match=r"^algebra 'sedenion' is unknown: use one of real, complex, "):
        find_algebra("sedenion")


def test_the_doubling_goes_on() -> None:
    """Sedenions have zero divisors: (e_3 + e_10) (e_6 - e_15) = 0."""
    sedenion, basis = Algebra("sedenion", 16), torch.eye(16, dtype=torch.float64)
    assert sedenion.product(basis[3] + basis[10], basis[6] - basis[15]).abs().max() == 0
    with pytest.raises(ValueError, match="dimension 12 of odd numbers: use a power of two"):
        Algebra("odd", 12)


def test_constants_stay_where_they_belong() -> None:
    """Neither the default device nor a tracing mode may enter what later calls see."""
    one = torch.ones(4)
    with torch.device("meta"):
        assert QUATERNION.structure.device.type == "cpu"
    with FakeTensorMode():
        QUATERNION.product(torch.ones(4), torch.ones(4))
    assert QUATERNION.product(one, one).tolist() == [-2, 2, 2, 2]

"""How components and groups are laid out, against the algebra's own matrices."""

import pytest
import torch

from quatserve.training.nn.algebra import ALGEBRAS, Algebra
from quatserve.training.nn.blocks import block_weight, by_group
from tests.training.oracles import randn

every_algebra = pytest.mark.parametrize("algebra", ALGEBRAS.values(), ids=lambda algebra: algebra.name)


@every_algebra
def test_block_matrix_is_the_left_matrix_of_each_weight(algebra: Algebra) -> None:
    d = algebra.dimension
    weight = randn(d * 3, 2)
    blocks = block_weight(algebra, weight).reshape(d, 3, d, 2)  # (c, out, b, in)
    expected = algebra.left_matrix(weight.unflatten(0, (d, 3)).permute(1, 2, 0))  # (out, in, c, b)
    assert torch.equal(blocks, expected.permute(2, 0, 3, 1))


@every_algebra
def test_inputs_in_rows(algebra: Algebra) -> None:
    """A transposed operation has the inputs in rows: block (b, c) is what block (c, b) was."""
    d = algebra.dimension
    weight = randn(d * 3, 2)  # (d in, out)
    blocks = block_weight(algebra, weight, transposed=True).reshape(d, 3, d, 2)  # (b, in, c, out)
    expected = algebra.left_matrix(weight.unflatten(0, (d, 3)).permute(1, 2, 0))  # (in, out, c, b)
    assert torch.equal(blocks, expected.permute(3, 0, 2, 1))


def test_channels_of_a_group_lie_side_by_side() -> None:
    """Two blocks, r and i, of three groups of two channels."""
    x = torch.tensor([[0, 1, 2, 3, 4, 5, 100, 101, 102, 103, 104, 105]])
    grouped = by_group(x, 2, 3, 1)
    assert grouped.tolist() == [[0, 1, 100, 101, 2, 3, 102, 103, 4, 5, 104, 105]]
    assert torch.equal(by_group(grouped, 3, 2, -1), x)

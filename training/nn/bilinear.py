"""Products of hypercomplex numbers with fewer real products than d^2: the bilinear forms

    w x = W ((U w) * (V x)) ,

where * multiplies number by number: sums, `rank` real products, sums again. With a convolution or a matrix
product in place of each real product it is half of the arithmetic of a wide layer.

- Complex numbers, 3 products for 4: Gauss.
- Quaternions, 8 for 16: T. D. Howell and J.-C. Lafon, The complexity of the quaternion product, Cornell
  University, TR 75-245, 1975. In layers: A. Cariow and G. Cariowa, Fast algorithms for quaternion-valued
  convolutional neural networks, IEEE TNNLS 32(1), 2021.
- Octonions, 32 for 64: the four quaternion products of the doubling, 8 each. (By Walsh-Hadamard transforms:
  A. Cariow and G. Cariowa, Fast algorithms for deep octonion networks, IEEE TNNLS 34(1), 2023.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class BilinearForm:
    """w x = out ((left w) * (right x)), with left and right (rank, d), out (d, rank)."""

    left: Matrix
    right: Matrix
    out: Matrix

    @property
    def rank(self) -> int:
        return len(self.left)


def combine(matrix: Matrix, parts: Sequence[Tensor]) -> list[Tensor]:
    """matrix @ parts, without its zeros: one sum of tensors for each row."""
    return [_sum(row, parts) for row in matrix]


def _sum(row: Sequence[float], parts: Sequence[Tensor]) -> Tensor:
    terms = [(factor, part) for factor, part in zip(row, parts, strict=True) if factor]
    terms.sort(key=lambda term: term[0] != 1)  # a sum that begins with a factor of 1 begins with no product
    factor, total = terms[0]
    if factor != 1:
        total = total * factor
    for factor, part in terms[1:]:
        total = torch.add(total, part, alpha=factor)
    return total


def doubled(form: BilinearForm) -> BilinearForm:
    """(p, q) (r, s) = (p r - s* q,  s p + q r*): four products of the algebra below.

    In s* q and s p the input (r, s) stands on the left: its sums are those of `left` there.
    """
    zeros = (0.0,) * len(form.left[0])

    def first(matrix: Matrix) -> Matrix:
        return tuple(row + zeros for row in matrix)

    def second(matrix: Matrix) -> Matrix:
        return tuple(zeros + row for row in matrix)

    def star(matrix: Matrix) -> Matrix:
        return tuple((row[0], *(-factor for factor in row[1:])) for row in matrix)

    nothing = (0.0,) * 2 * form.rank
    left = first(form.left) + second(form.right) + first(form.right) + second(form.left)
    right = first(form.right) + second(star(form.left)) + second(form.left) + first(star(form.right))
    upper = tuple(row + tuple(-factor for factor in row) + nothing for row in form.out)
    lower = tuple(nothing + row + row for row in form.out)
    return BilinearForm(left, right, upper + lower)


# (w_r x_r), (w_i x_i), (w_r + w_i)(x_r + x_i)
COMPLEX_FORM = BilinearForm(
    left=((1, 0), (0, 1), (1, 1)),
    right=((1, 0), (0, 1), (1, 1)),
    out=((1, -1, 0), (-1, -1, 1)),
)
QUATERNION_FORM = BilinearForm(
    left=(
        (1, 1, 0, 0),
        (0, 0, -1, 1),
        (1, -1, 0, 0),
        (0, 0, 1, 1),
        (0, 0.5, 0, 0.5),
        (0, 0.5, 0, -0.5),
        (0.5, 0, 0.5, 0),
        (0.5, 0, -0.5, 0),
    ),
    right=(
        (1, 1, 0, 0),
        (0, 0, 1, -1),
        (0, 0, 1, 1),
        (1, -1, 0, 0),
        (0, 1, 1, 0),
        (0, 1, -1, 0),
        (1, 0, 0, -1),
        (1, 0, 0, 1),
    ),
    out=(
        (0, 1, 0, 0, -1, -1, 1, 1),
        (1, 0, 0, 0, -1, -1, -1, -1),
        (0, 0, 1, 0, 1, -1, 1, -1),
        (0, 0, 0, 1, 1, -1, -1, 1),
    ),
)
OCTONION_FORM = doubled(QUATERNION_FORM)

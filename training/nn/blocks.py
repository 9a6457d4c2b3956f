"""Components in blocks: how hypercomplex weights and groups are laid out for one real operation.

A feature map of C hypercomplex channels is a real tensor of d C channels in d blocks of C, real block first
(quaternions: [r | i | j | k]). A weight has its components in d blocks of rows.
"""

import torch
from torch import Tensor

from quatserve.training.nn.algebra import Algebra


def block_weight(algebra: Algebra, weight: Tensor, *, transposed: bool = False) -> Tensor:
    """(d out, in, ...) components of W -> the (d out, d in, ...) real weight whose blocks are L(W).

    Block (c, b) is the W_a with e_a e_b = +-e_c, so that sum_b block(c, b) h_b = (W h)_c. A transposed
    operation has its inputs in rows, (d in, out, ...) -> (d in, d out, ...), with that block at (b, c).
    """
    basis = range(algebra.dimension)
    parts = [signed.unflatten(0, (len(basis), -1)).unbind() for signed in (weight, -weight)]

    def block(c: int, b: int) -> Tensor:
        a = c ^ b
        return parts[algebra.signs[a][b] < 0][a]  # type: ignore[no-any-return]

    rows = [[block(j, i) if transposed else block(i, j) for j in basis] for i in basis]
    return torch.cat([torch.cat(row, 1) for row in rows])


def by_group(x: Tensor, blocks: int, groups: int, dim: int) -> Tensor:
    """Channels in `blocks` blocks of `groups` parts -> `groups` blocks of `blocks` parts.

    A real grouped operation wants the channels of a group side by side. Exchange the numbers to undo it.
    """
    if 1 in (blocks, groups):
        return x
    dim %= x.ndim
    return x.unflatten(dim, (blocks, groups, -1)).transpose(dim, dim + 1).flatten(dim, dim + 2)  # type: ignore[no-any-return]

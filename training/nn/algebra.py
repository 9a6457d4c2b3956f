"""Hypercomplex algebras as structure constants, by the Cayley-Dickson doubling.

An algebra of dimension d has a basis e_0 = 1, e_1, ..., e_{d-1} and a table of products

    e_a e_b = sum_c  structure[a, b, c] e_c .

Real numbers have d = 1, complex d = 2, quaternions d = 4, octonions d = 8. Components are ordered real
first: (r, i, j, k) for quaternions. Each doubling takes pairs (p, q) of the algebra below to

    (p, q) (r, s) = (p r - s* q,  s p + q r*) ,

which gives Hamilton's i j = k at d = 4. Everything in this package is one formula in these constants.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Algebra:
    name: str
    dimension: int

    @property
    def structure(self) -> Tensor:
        """(d, d, d) float64: structure[a, b, c] is the e_c component of e_a e_b."""
        return _structure(self.dimension)

    def product(self, p: Tensor, q: Tensor) -> Tensor:
        """p q, components on the last axis."""
        return torch.einsum("...a,...b,abc->...c", p, q, self.structure.to(p))

    def conjugate(self, p: Tensor) -> Tensor:
        """p*: the real part kept, the others negated; components on the last axis."""
        return p * _conjugation(self.dimension).to(p)

    def norm(self, p: Tensor) -> Tensor:
        """|p| = sqrt(p p*), components on the last axis."""
        return torch.linalg.vector_norm(p, dim=-1)  # type: ignore[no-any-return]

    def left_matrix(self, p: Tensor) -> Tensor:
        """L(p), (..., d, d), with L(p) q = p q: equation 4 of the paper for quaternions."""
        return torch.einsum("...a,abc->...cb", p, self.structure.to(p))


REAL = Algebra("real", 1)
COMPLEX = Algebra("complex", 2)
QUATERNION = Algebra("quaternion", 4)
OCTONION = Algebra("octonion", 8)
ALGEBRAS = {algebra.name: algebra for algebra in (REAL, COMPLEX, QUATERNION, OCTONION)}


@cache
def _conjugation(dimension: int) -> Tensor:
    signs = -torch.ones(dimension, dtype=torch.float64)
    signs[0] = 1
    return signs


@cache
def _structure(dimension: int) -> Tensor:
    if dimension == 1:
        return torch.ones(1, 1, 1, dtype=torch.float64)
    half = dimension // 2
    below, star = _structure(half), _conjugation(half)
    table = torch.zeros(dimension, dimension, dimension, dtype=torch.float64)
    table[:half, :half, :half] = below  # p r
    table[half:, half:, :half] = -torch.einsum("bac,b->abc", below, star)  # -s* q
    table[:half, half:, half:] = below.transpose(0, 1)  # s p
    table[half:, :half, half:] = torch.einsum("abc,b->abc", below, star)  # q r*
    return table

"""Hypercomplex algebras as tables of signs, by the Cayley-Dickson doubling.

An algebra of dimension d has a basis e_0 = 1, e_1, ..., e_{d-1}. The product of two of them is a third, or
its negative:

    e_a e_b = signs[a][b] e_{a xor b} .

Real numbers have d = 1, complex d = 2, quaternions d = 4, octonions d = 8. Components are ordered real
first: (r, i, j, k) for quaternions. Each doubling takes pairs (p, q) of the algebra below to

    (p, q) (r, s) = (p r - s* q,  s p + q r*) ,

which gives Hamilton's i j = k at d = 4. Everything in this package is one formula in these signs. They are
integers: a cached tensor would stay on the device, or in the tracing mode, that first asked for it.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from quatserve.training.nn.bilinear import COMPLEX_FORM, OCTONION_FORM, QUATERNION_FORM, BilinearForm

Signs = tuple[tuple[int, ...], ...]


class ChannelError(ValueError):
    """A number of real channels that the layer cannot divide into hypercomplex ones."""


def _signs(dimension: int) -> Signs:
    """signs[a][b] of e_a e_b. A basis element of the upper half is (0, e), and e* = -e unless it is 1."""
    if dimension == 1:
        return ((1,),)
    half = dimension // 2
    below = _signs(half)
    basis = range(half)
    star = [1 if b == 0 else -1 for b in basis]
    upper = [[below[a][b] for b in basis] + [below[b][a] for b in basis] for a in basis]  # p r, s p
    lower = [[below[a][b] * star[b] for b in basis] + [-below[b][a] * star[b] for b in basis] for a in basis]
    return tuple(map(tuple, upper + lower))  # below: q r*, -s* q


@dataclass(frozen=True)
class Algebra:
    """The algebra of a dimension; messages say its name."""

    name: str
    dimension: int  # a power of two
    form: BilinearForm | None = field(default=None, repr=False, compare=False)  # products with fewer factors
    signs: Signs = field(init=False, repr=False, compare=False)  # e_a e_b = signs[a][b] e_{a xor b}

    def __post_init__(self) -> None:
        if self.dimension < 1 or self.dimension.bit_count() != 1:
            raise ValueError(f"dimension {self.dimension} of {self.name} numbers: use a power of two")
        object.__setattr__(self, "signs", _signs(self.dimension))

    def channels(self, real: int) -> int:
        """Real channels -> hypercomplex channels."""
        if real <= 0 or real % self.dimension:
            raise ChannelError(
                f"{real} channels cannot be split into {self.name} numbers: "
                f"use a positive multiple of {self.dimension}"
            )
        return real // self.dimension

    @property
    def structure(self) -> Tensor:
        """(d, d, d) float64: structure[a, b, c] is the e_c component of e_a e_b."""
        basis = range(self.dimension)
        table = [[[self.signs[a][b] * (c == a ^ b) for c in basis] for b in basis] for a in basis]
        return torch.tensor(table, dtype=torch.float64, device="cpu")

    def product(self, p: Tensor, q: Tensor) -> Tensor:
        """p q, components on the last axis."""
        return torch.einsum("...a,...b,abc->...c", p, q, self.structure.to(p))

    def conjugate(self, p: Tensor) -> Tensor:
        """p*: the real part kept, the others negated; components on the last axis."""
        return torch.cat([p[..., :1], -p[..., 1:]], -1)

    def norm(self, p: Tensor) -> Tensor:
        """|p| = sqrt(p p*), components on the last axis."""
        return torch.linalg.vector_norm(p, dim=-1)  # type: ignore[no-any-return]

    def left_matrix(self, p: Tensor) -> Tensor:
        """L(p), (..., d, d), with L(p) q = p q: equation 4 of the paper for quaternions."""
        return torch.einsum("...a,abc->...cb", p, self.structure.to(p))


REAL = Algebra("real", 1)
COMPLEX = Algebra("complex", 2, COMPLEX_FORM)
QUATERNION = Algebra("quaternion", 4, QUATERNION_FORM)
OCTONION = Algebra("octonion", 8, OCTONION_FORM)
ALGEBRAS = {algebra.name: algebra for algebra in (REAL, COMPLEX, QUATERNION, OCTONION)}


def find_algebra(algebra: Algebra | str) -> Algebra:
    """An algebra itself, or the one of that name."""
    if isinstance(algebra, Algebra):
        return algebra
    if algebra not in ALGEBRAS:
        raise ValueError(f"algebra {algebra!r} is unknown: use one of {', '.join(ALGEBRAS)}")
    return ALGEBRAS[algebra]

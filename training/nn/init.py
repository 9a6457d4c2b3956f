"""Hypercomplex weight initialisation in polar form (the paper's section III-E).

    W = |W| (cos t + u sin t),   |W| ~ sigma chi_d,   t ~ U(-pi, pi),   u uniform on the unit imaginaries,

so E|W|^2 = d sigma^2. He's criterion asks for Var(W) = 2 / n_in, Glorot's for 2 / (n_in + n_out), with n
counted in hypercomplex units: channels times kernel area. The real part gets half of the variance, since t
is uniform; for quaternions that is 2 sigma^2 against 2/3 sigma^2 for each imaginary part.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Generator, Tensor

Criterion = Literal["he", "glorot"]


def sigma(criterion: Criterion, dimension: int, n_in: int, n_out: int) -> float:
    """The chi_d scale that meets the criterion."""
    fan = n_in if criterion == "he" else n_in + n_out
    return math.sqrt(2 / (dimension * fan))


def polar_weight(
    dimension: int, shape: tuple[int, ...], scale: float, *, like: Tensor, generator: Generator | None = None
) -> Tensor:
    """(d, *shape) components of random weights with chi_d magnitude and uniform phase; at least fp32."""
    dtype = torch.promote_types(like.dtype, torch.float32)

    def draw(distribution: Callable[..., Tensor], count: int) -> Tensor:
        return distribution(count, *shape, generator=generator, dtype=dtype, device=like.device)

    magnitude = scale * torch.linalg.vector_norm(draw(torch.randn, dimension), dim=0)
    if dimension == 1:  # no imaginary axis: the phase is a sign
        return (magnitude * draw(torch.randn, 1).sign()).reshape(1, *shape)  # type: ignore[no-any-return]
    phase = (2 * draw(torch.rand, 1) - 1) * math.pi
    axis = torch.nn.functional.normalize(draw(torch.randn, dimension - 1), dim=0)
    return magnitude * torch.cat([phase.cos(), axis * phase.sin()])  # type: ignore[no-any-return]

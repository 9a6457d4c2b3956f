"""Second opinions: definitions written without the package under test, and what counts as equal to them."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

DTYPES = (torch.float32, torch.float64)
TOLERANCE = {torch.float32: (2e-4, 2e-5), torch.float64: (1e-10, 1e-11)}  # relative, absolute


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Equal to rounding, in the precision of `actual`; NaN is never equal."""
    rtol, atol = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=rtol, atol=atol)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def conjugate(p: Sequence[float]) -> list[float]:
    return [p[0], *(-x for x in p[1:])]


def multiply(p: Sequence[float], q: Sequence[float]) -> list[float]:
    """The Cayley-Dickson product by its recursion: (a, b) (c, d) = (a c - d* b, d a + b c*)."""
    if len(p) == 1:
        return [p[0] * q[0]]
    half = len(p) // 2
    a, b, c, d = p[:half], p[half:], q[:half], q[half:]
    real = [x - y for x, y in zip(multiply(a, c), multiply(conjugate(d), b), strict=True)]
    imaginary = [x + y for x, y in zip(multiply(d, a), multiply(b, conjugate(c)), strict=True)]
    return real + imaginary


def correlated_batch(
    dimension: int, channels: int, *, shape: tuple[int, int, int] = (6, 5, 7), seed: int = 0
) -> Tensor:
    """(B, d C, H, W) float64: correlated components, a mean and a scale of its own for each channel."""
    batch, height, width = shape
    white = randn(batch, dimension, channels, height, width, seed=seed)
    # the diagonal bounds the covariance's condition, which multiplies what float32 rounds off
    mix = randn(channels, dimension, dimension, seed=seed + 1) / 2 + 2 * torch.eye(dimension).double()
    shift = randn(1, dimension, channels, 1, 1, seed=seed + 2)
    return (torch.einsum("cab,nbchw->nachw", mix, white) + 2 * shift).flatten(1, 2)


def components(x: Tensor, dimension: int) -> Tensor:
    """(B, d C, H, W) -> (C, d, B H W): every value of every hypercomplex channel."""
    parts: Tensor = x.unflatten(1, (dimension, -1))
    return parts.permute(2, 1, 0, 3, 4).flatten(2)


def from_components(values: Tensor, like: Tensor) -> Tensor:
    """What `components` took apart, put together again in the shape of `like`."""
    batch, _, height, width = like.shape
    parts: Tensor = values.unflatten(2, (batch, height, width))
    return parts.permute(2, 1, 0, 3, 4).flatten(1, 2)


def covariances(x: Tensor, dimension: int) -> Tensor:
    """(C, d, d), biased, by torch.cov channel by channel."""
    return torch.stack([torch.cov(c, correction=0).reshape(dimension, -1) for c in components(x, dimension)])


def with_eps(V: Tensor, eps: float) -> Tensor:
    """eps on the diagonal, or 32 units in the last place of fp32 of a variance where that is more."""
    return V + torch.diag_embed((V.diagonal(dim1=-2, dim2=-1) * 2**-18).clamp_min(eps))


def whitened(x: Tensor, dimension: int, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
    """gamma L^-1 (x - mu) + beta by the definition: gamma (C, d, d), beta (d, C)."""
    values = components(x, dimension)
    centred = values - values.mean(2, keepdim=True)
    V = with_eps(centred @ centred.mT / values.shape[2], eps)
    white = torch.linalg.inv(torch.linalg.cholesky(V)) @ centred
    return from_components(gamma @ white + beta.T[..., None], x)

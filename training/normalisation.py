"""Batch normalisation that truly whitens: y = gamma W (x - mu) + beta.

Each hypercomplex channel is a d-vector of components, here of C channels in d blocks, real block first.
Over batch and space it has a mean mu and a covariance V (biased, d x d). With V + eps I = L L^T the whitening
matrix is W = L^-1, so that W (V + eps I) W^T = I. (The paper takes a Cholesky factor of the inverse of V: it
whitens as well and differs from ours by a rotation. L^-1 is our choice: one factorisation, no inverse.)
gamma is symmetric, d(d+1)/2 numbers a channel, with 1/sqrt(d) on its diagonal at first.

Training uses the moments of the batch (of all ranks, where torch.distributed runs) and updates the running
ones; evaluation uses the running ones, and is then the affine map that `export` folds away.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .algebra import Algebra
from .convolution import hypercomplex_channels
from .moments import batch_mean, batch_moments, mixing_matrix


def packing(dimension: int) -> Tensor:
    """(d, d) positions of a symmetric matrix's entries in its packed upper triangle, row by row."""
    rows, columns = torch.triu_indices(dimension, dimension)
    position = torch.empty(dimension, dimension, dtype=torch.long)
    position[rows, columns] = position[columns, rows] = torch.arange(len(rows))
    return position


def whitening_matrix(covariance: Tensor, eps: float) -> Tensor:
    """(C, d, d) covariances V -> W = L^-1 with L L^T = V + eps I."""
    d = covariance.shape[-1]
    identity = torch.eye(d, dtype=covariance.dtype, device=covariance.device)
    factor, _ = torch.linalg.cholesky_ex(covariance + eps * identity)
    return torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)  # type: ignore[no-any-return]


class HypercomplexBatchNorm2d(nn.Module):
    """Whitening batch normalisation of (batch, d C, height, width).

    `whiten=False` is what the authors trained their road networks with: for d > 1 it only centres and adds
    beta; for d = 1 it still divides by the deviation. Neither has a gamma.
    """

    packing: Tensor  # (d, d)
    running_mean: Tensor  # (d, C)
    running_covariance: Tensor  # (C, d, d)

    def __init__(
        self,
        algebra: Algebra,
        channels: int,
        *,
        whiten: bool = True,
        eps: float = 1e-4,
        momentum: float = 0.1,
    ):
        super().__init__()
        d, n = algebra.dimension, hypercomplex_channels(algebra, channels)
        self.algebra, self.channels, self.whiten, self.eps, self.momentum = algebra, n, whiten, eps, momentum
        self.beta = nn.Parameter(torch.zeros(d, n))
        self.gamma = nn.Parameter(self._initial_gamma(d, n)) if whiten else None
        self.register_buffer("packing", packing(d), persistent=False)
        self.register_buffer("running_mean", torch.zeros(d, n))
        if self.scales:
            self.register_buffer("running_covariance", torch.eye(d).repeat(n, 1, 1))

    @staticmethod
    def _initial_gamma(d: int, channels: int) -> Tensor:
        rows, columns = torch.triu_indices(d, d)
        return ((rows == columns) / math.sqrt(d)).to(torch.get_default_dtype()).repeat(channels, 1)  # type: ignore[no-any-return]

    @property
    def scales(self) -> bool:
        """Whether the layer divides by a deviation at all."""
        return self.whiten or self.algebra.dimension == 1

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):  # covariances need the range of fp32
            return self._normalise(x if x.dtype == torch.float64 else x.float()).to(x.dtype)

    def _normalise(self, x: Tensor) -> Tensor:
        mean, covariance = self._batch_statistics(x) if self.training else self._running_statistics()
        if covariance is None:
            return x + (self.beta - mean).reshape(-1, 1, 1)
        matrix, offset = self.affine(mean, covariance)
        if self.algebra.dimension == 1:
            return x * matrix.reshape(-1, 1, 1) + offset.reshape(-1, 1, 1)
        return F.conv2d(x, mixing_matrix(matrix)[..., None, None], offset.reshape(-1))

    def affine(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """M = gamma W, (C, d, d), and b = beta - M mu, (d, C)."""
        matrix = whitening_matrix(covariance, self.eps)
        if self.gamma is not None:
            matrix = self.gamma[:, self.packing] @ matrix
        return matrix, self.beta - torch.einsum("cab,bc->ac", matrix, mean)

    def _running_statistics(self) -> tuple[Tensor, Tensor | None]:
        return self.running_mean, self.running_covariance if self.scales else None

    def _batch_statistics(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        d = self.algebra.dimension
        if not self.scales:
            mean = batch_mean(x, d)
            self._track(self.running_mean, mean)
            return mean, None
        mean, covariance = batch_moments(x, d)
        self._track(self.running_mean, mean)
        self._track(self.running_covariance, covariance)
        return mean, covariance

    @torch.no_grad()
    def _track(self, running: Tensor, batch: Tensor) -> None:
        running.lerp_(batch.to(running.dtype), self.momentum)

    def extra_repr(self) -> str:
        return f"{self.algebra.name}, channels={self.channels}, whiten={self.whiten}, eps={self.eps}"

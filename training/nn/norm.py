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
from typing import Any

import torch
from torch import Tensor, nn

from quatserve.training.nn.algebra import Algebra
from quatserve.training.nn.conv import hypercomplex_channels
from quatserve.training.nn.moments import (
    batch_mean,
    batch_moments,
    images_of,
    mix,
    products,
    several_ranks,
    sum_over_ranks,
    total,
    values_of,
)

RELATIVE_EPS = 2.0**-18  # 32 units in the last place of fp32


def packing(dimension: int) -> Tensor:
    """(d, d) positions of a symmetric matrix's entries in its packed upper triangle, row by row."""
    rows, columns = torch.triu_indices(dimension, dimension)
    position = torch.empty(dimension, dimension, dtype=torch.long)
    position[rows, columns] = position[columns, rows] = torch.arange(len(rows))
    return position


def regularised(covariance: Tensor, eps: float) -> Tensor:
    """V + eps I, where eps gives way to RELATIVE_EPS of a variance if that is larger.

    Otherwise duplicated channels of a large variance would have no Cholesky factor in fp32. It is the same in
    float64, so that a network means the same there.
    """
    identity = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    return covariance + (RELATIVE_EPS * covariance).clamp_min(eps) * identity


def whitening_matrix(covariance: Tensor, eps: float) -> Tensor:
    """(C, d, d) covariances V -> W = L^-1 with L L^T = V + eps I."""
    factor, _ = torch.linalg.cholesky_ex(regularised(covariance, eps))
    identity = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    W: Tensor = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
    return W


class _Whiten(torch.autograd.Function):
    """y = M (x - mu) + beta, M = gamma W, with the moments of the batch, which are returned as well.

    Backward, with dM = sum dy (x - mu)^T over the N values of a channel, and Phi(A) the lower triangle of A
    with half of its diagonal:

        dgamma = dM W^T,   dbeta = sum dy,   dV = -W^T Phi(gamma^T dM W^T) W,
        dx = M^T dy + (dV + dV^T) (x - mu) / N - M^T dbeta / N .

    In the last two, dM and dbeta are sums over all ranks.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        values = values_of(x, len(beta))
        mean, covariance, ctx.count = batch_moments(values)
        centred = values - mean
        W = whitening_matrix(covariance, eps)
        ctx.save_for_backward(centred, gamma, W)
        ctx.mark_non_differentiable(mean, covariance)
        return images_of(mix(gamma @ W, centred, beta)), mean, covariance

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        with torch.autocast(grad.device.type, enabled=False):  # compiled, the caller's would hold
            return _Whiten._gradients(ctx, grad)

    @staticmethod
    def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        centred, gamma, W = ctx.saved_tensors
        dy = values_of(grad, centred.shape[3])
        dM, dbeta = products(dy, centred), total(dy)
        grad_gamma, grad_beta = dM @ W.mT, dbeta
        if several_ranks():
            dM, dbeta = _summed(dM, dbeta)
        phi = torch.ones_like(W).tril() - torch.eye(len(dbeta), dtype=W.dtype, device=W.device) / 2
        dV = -W.mT @ (phi * (gamma.mT @ dM @ W.mT)) @ W
        M = gamma @ W
        shift = torch.einsum("cab,ac->bc", M, dbeta) / -ctx.count
        dx = mix((dV + dV.mT) / ctx.count, centred, mix(M.mT, dy, shift))
        return images_of(dx), grad_gamma, grad_beta, None


def _summed(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both over all ranks, in one exchange."""
    summed = sum_over_ranks(torch.cat([a.flatten(), b.flatten()]))
    return summed[: a.numel()].reshape(a.shape), summed[a.numel() :].reshape(b.shape)


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
        if not self.training:
            return self._evaluate(x)
        if not self.scales:
            mean = batch_mean(values_of(x, self.algebra.dimension))
            self._track(self.running_mean, mean)
            return x + (self.beta - mean).reshape(-1, 1, 1)
        y, mean, covariance = _Whiten.apply(x, self.gamma_matrix(), self.beta, self.eps)  # type: ignore[no-untyped-call]
        self._track(self.running_mean, mean)
        self._track(self.running_covariance, covariance)
        return y  # type: ignore[no-any-return]

    def _evaluate(self, x: Tensor) -> Tensor:
        if not self.scales:
            return x + (self.beta - self.running_mean).reshape(-1, 1, 1)
        matrix, offset = self.affine(self.running_mean, self.running_covariance)
        return images_of(mix(matrix, values_of(x, self.algebra.dimension), offset))

    def affine(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """M = gamma W, (C, d, d), and b = beta - M mu, (d, C)."""
        matrix = self.gamma_matrix() @ whitening_matrix(covariance, self.eps)
        return matrix, self.beta - torch.einsum("cab,bc->ac", matrix, mean)

    def gamma_matrix(self) -> Tensor:
        """gamma, (C, d, d); the identity where the layer has none."""
        if self.gamma is None:
            return torch.ones_like(self.running_covariance)  # only real layers scale without a gamma
        return self.gamma[:, self.packing]

    @torch.no_grad()
    def _track(self, running: Tensor, batch: Tensor) -> None:
        running.lerp_(batch.to(running.dtype), self.momentum)

    def extra_repr(self) -> str:
        return f"{self.algebra.name}, channels={self.channels}, whiten={self.whiten}, eps={self.eps}"

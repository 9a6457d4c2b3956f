"""Training's normalisation, y = gamma W (x - mu) + beta by the moments of the batch, with its own gradient.

Differentiated operation by operation, it would write the feature map a dozen times. With M = gamma W,
dM = sum dy (x - mu)^T over the N values of a channel, and Phi(A) the lower triangle of A with half of its
diagonal:

    dgamma = dM W^T,   dbeta = sum dy,   dV = -W^T Phi(gamma^T dM W^T) W,
    dx = M^T dy + (dV + dV^T) (x - mu) / N - M^T dbeta / N .

In the last two, dM and dbeta are sums over all ranks.
"""

from typing import Any

import torch
from torch import Tensor

from quatserve.training.nn.moments import (
    batch_moments,
    compose,
    maps_of,
    mix,
    products,
    several_ranks,
    sum_over_ranks,
    total,
    values_of,
)
from quatserve.training.nn.precision import without_autocast
from quatserve.training.nn.whitening import whitening_matrix


def whiten_batch(x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x (B, d C, ...), gamma (C, d, d), beta (d, C) -> y, and the batch's mean (d, C) and covariance."""
    return _WhitenBatch.apply(x, gamma, beta, eps)  # type: ignore[no-any-return, no-untyped-call]


class _WhitenBatch(torch.autograd.Function):
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
        return maps_of(mix(compose(gamma, W), centred, beta)), mean, covariance

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        with without_autocast(grad):  # compiled, the caller's would hold
            return _gradients(ctx, grad)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    centred, gamma, W = ctx.saved_tensors
    dy = values_of(grad, centred.shape[-2])
    dM, dbeta = products(dy, centred), total(dy)
    grad_gamma, grad_beta = compose(dM, W.mT), dbeta
    if several_ranks():
        dM, dbeta = _summed(dM, dbeta)
    phi = torch.ones_like(W).tril() - torch.eye(len(dbeta), dtype=W.dtype, device=W.device) / 2
    dV = -compose(W.mT, compose(phi * compose(gamma.mT, compose(dM, W.mT)), W))
    M = compose(gamma, W)
    shift = (M * dbeta.T.unsqueeze(-1)).sum(-2).T / -ctx.count  # -M^T dbeta / N
    dx = mix((dV + dV.mT) / ctx.count, centred, mix(M.mT, dy, shift))
    return maps_of(dx), grad_gamma, grad_beta, None


def _summed(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both over all ranks, in one exchange."""
    summed = sum_over_ranks(torch.cat([a.flatten(), b.flatten()]))
    return summed[: a.numel()].reshape(a.shape), summed[a.numel() :].reshape(b.shape)

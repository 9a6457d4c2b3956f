"""Mean and covariance of hypercomplex channels over a batch, on one process or on many.

The covariance is one Gram matrix of the centred batch, of which the d x d blocks are kept: one matrix
product instead of d(d+1)/2 strided ones. Its backward is written by hand. With N values a channel,

    dL/dx = (gV + gV^T) (x - mu) / N + g_mu / N ,

where gV = dL/dV and g_mu = dL/dmu. Across ranks the moments are combined exactly, and gV and g_mu are summed.
"""

from typing import Any

import torch
from torch import Tensor, distributed


def batch_moments(x: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
    """(B, d C, H, W) -> mean (d, C) and biased covariance (C, d, d), over every rank."""
    if dimension == 1 and not _several_ranks():
        variance, mean = torch.var_mean(x, (0, 2, 3), correction=0)
        return mean.reshape(1, -1), variance.reshape(-1, 1, 1)
    mean, covariance = _Moments.apply(x, dimension)  # type: ignore[no-untyped-call]
    return mean, covariance


def batch_mean(x: Tensor, dimension: int) -> Tensor:
    """(B, d C, H, W) -> mean (d, C), over every rank."""
    if _several_ranks():
        return batch_moments(x, dimension)[0]
    return x.mean((0, 2, 3)).reshape(dimension, -1)


def mixing_matrix(matrices: Tensor) -> Tensor:
    """(C, d, d), one matrix a channel -> (d C, d C), the same map on d blocks of C."""
    channels, d, _ = matrices.shape
    blocks = torch.diag_embed(matrices.permute(1, 2, 0))  # (d, d, C, C)
    return blocks.permute(0, 2, 1, 3).reshape(d * channels, d * channels)


def channel_blocks(gram: Tensor, dimension: int) -> Tensor:
    """(d C, d C) -> (C, d, d): what `mixing_matrix` lays out, taken back."""
    return gram.unflatten(0, (dimension, -1)).unflatten(2, (dimension, -1)).diagonal(0, 1, 3).permute(2, 0, 1)  # type: ignore[no-any-return]


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
        rows = _rows(x)
        mean = rows.mean(0)
        centred = rows - mean  # before the product: the mean may be a hundred deviations away
        gram = centred.T @ centred / len(rows)
        ctx.count = len(rows)
        if _several_ranks():
            mean, gram, ctx.count = _combine(mean, gram, ctx.count)
        ctx.save_for_backward(x, mean)
        return mean.reshape(dimension, -1), channel_blocks(gram, dimension).contiguous()

    @staticmethod
    def backward(ctx: Any, grad_mean: Tensor, grad_covariance: Tensor) -> tuple[Tensor, None]:
        x, mean = ctx.saved_tensors
        if _several_ranks():
            grad_mean, grad_covariance = _summed(grad_mean), _summed(grad_covariance)
        mix = mixing_matrix(grad_covariance + grad_covariance.mT) / ctx.count
        shift = grad_mean.reshape(-1) / ctx.count - mix @ mean
        grad_rows = torch.addmm(shift, _rows(x), mix)
        batch, _, height, width = x.shape
        return grad_rows.reshape(batch, height, width, -1).permute(0, 3, 1, 2), None


def _rows(x: Tensor) -> Tensor:
    """(B, K, H, W) -> (B H W, K), a view where x is channels_last."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def _several_ranks() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _summed(x: Tensor) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total)
    return total


def _combine(mean: Tensor, gram: Tensor, count: int) -> tuple[Tensor, Tensor, int]:
    """Moments of the union of all ranks' rows, which may differ in number."""
    total = int(_summed(torch.tensor(count)))
    share = count / total
    global_mean = _summed(mean * share)
    away = mean - global_mean
    return global_mean, _summed((gram + torch.outer(away, away)) * share), total

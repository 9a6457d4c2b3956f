"""Sums over a batch and maps of its hypercomplex channels: all that normalisation does at every pixel.

A feature map is taken as values of shape (B, ..., d, C): of (B, d C, ...) a view, where channels_last.
One matrix a channel, (C, d, d), maps its d components. There are two ways to compute with them:

- compiled, as sums of d products, which the compiler fuses with what comes before and after;
- uncompiled, and for octonions, as one matrix product with d x d diagonal blocks: C times the arithmetic, but
  a single pass.

Sums run over image rows first: short sums stay in the cache, and lose less to rounding.
"""

from typing import Any

import torch
from torch import Tensor, distributed

from quatserve.training.nn.precision import exact_matmul

FUSED_DIMENSION = 4  # the compiler makes something very slow of the 64 products of octonions


def values_of(x: Tensor, dimension: int) -> Tensor:
    """(B, d C, ...) -> (B, ..., d, C)."""
    return x.movedim(1, -1).unflatten(-1, (dimension, -1))  # type: ignore[no-any-return]


def maps_of(values: Tensor) -> Tensor:
    """(B, ..., d, C) -> (B, d C, ...), channels_last."""
    return values.flatten(-2).movedim(-1, 1)


def total(values: Tensor, kept: int = 2) -> Tensor:
    """The sum over batch and space: of all but the last axes, (d, C)."""
    rows = values.sum(-kept - 1)
    return rows.flatten(0, -kept - 1).sum(0) if rows.ndim > kept else rows


def products(p: Tensor, q: Tensor) -> Tensor:
    """sum p q^T over batch and space, (C, d, d)."""
    dimension = p.shape[-2]
    if _fused(dimension):
        return total(p.unsqueeze(-2) * q.unsqueeze(-3), kept=3).permute(2, 0, 1)
    return channel_blocks(exact_matmul(_rows(p).T, _rows(q)), dimension)


def mix(matrices: Tensor, values: Tensor, offset: Tensor) -> Tensor:
    """M v + offset with a matrix a channel, (C, d, d); the offset is (d, C), or as large as the values."""
    if _fused(values.shape[-2]):
        kept = offset if offset.ndim > 2 else _computed_once(offset)
        return (_computed_once(matrices.permute(1, 2, 0)) * values.unsqueeze(-3)).sum(-2) + kept
    return exact_matmul(_rows(values), mixing_matrix(matrices).T).reshape(values.shape).add_(offset)  # type: ignore[no-any-return]


def compose(a: Tensor, b: Tensor) -> Tensor:
    """The products a b of two matrices a channel, (C, d, d), as sums: in full precision, and fused."""
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2)


def mixing_matrix(matrices: Tensor) -> Tensor:
    """(C, d, d), one matrix a channel -> (d C, d C), the same map on d blocks of C."""
    channels, d, _ = matrices.shape
    blocks = torch.diag_embed(matrices.permute(1, 2, 0))  # (d, d, C, C)
    return blocks.permute(0, 2, 1, 3).reshape(d * channels, d * channels)


def channel_blocks(gram: Tensor, dimension: int) -> Tensor:
    """(d C, d C) -> (C, d, d): what `mixing_matrix` lays out, taken back."""
    blocks: Tensor = gram.unflatten(0, (dimension, -1)).unflatten(2, (dimension, -1))  # (d, C, d, C)
    return blocks.diagonal(0, 1, 3).permute(2, 0, 1)


def batch_moments(values: Tensor) -> tuple[Tensor, Tensor, Tensor | int]:
    """Mean (d, C), biased covariance (C, d, d) and number of values a channel, over every rank."""
    count = values.shape[:-2].numel()
    mean = total(values) / count
    centred = values - mean  # before the product: the mean may be a hundred deviations away
    covariance = products(centred, centred) / count
    return _combine(mean, covariance, count) if several_ranks() else (mean, covariance, count)


def batch_mean(values: Tensor) -> Tensor:
    """Mean (d, C) over every rank, with its gradient."""
    count = values.shape[:-2].numel()
    if not several_ranks():
        return total(values) / count
    counts = sum_over_ranks(torch.full((), float(count), device=values.device))
    summed: Tensor = _SumOverRanks.apply(total(values))  # type: ignore[no-untyped-call]
    return summed / counts


def several_ranks() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def sum_over_ranks(x: Tensor) -> Tensor:
    summed = x.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(summed)
    return summed


class _SumOverRanks(torch.autograd.Function):
    """Every rank's output depends on every rank's input alike: the gradient is summed as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004 - torch's signature
        return sum_over_ranks(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return sum_over_ranks(gradient)


def _combine(mean: Tensor, covariance: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Moments of the union of all ranks' values, few or many: one exchange, equal everywhere."""
    ours = torch.cat([mean.new_tensor([count]), mean.flatten(), covariance.flatten()])
    gathered = ours.new_empty(distributed.get_world_size(), len(ours))
    distributed.all_gather(list(gathered), ours)
    counts, means, covariances = gathered.split([1, mean.numel(), covariance.numel()], 1)
    share = counts / counts.sum()
    union = (share * means).sum(0)
    away = (means - union).unflatten(1, mean.shape)  # (ranks, d, C)
    spread = share[:, :, None, None] * away.unsqueeze(2) * away.unsqueeze(1)
    return (
        union.reshape(mean.shape),
        (share * covariances).sum(0).reshape(covariance.shape) + spread.sum(0).permute(2, 0, 1),
        counts.sum(),
    )


def _fused(dimension: int) -> bool:
    return dimension == 1 or (dimension <= FUSED_DIMENSION and torch.compiler.is_compiling())


def _rows(values: Tensor) -> Tensor:
    return values.reshape(-1, values.shape[-2:].numel())


def _computed_once(x: Tensor) -> Tensor:
    """The same, contiguous, by an operation that the compiler never repeats for each pixel: it writes stacks out."""
    return torch.stack(x.unbind())

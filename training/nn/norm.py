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
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from quatserve.training.nn.algebra import Algebra, ChannelError
from quatserve.training.nn.batch_whitening import whiten_batch
from quatserve.training.nn.module import HypercomplexModule
from quatserve.training.nn.moments import batch_mean, compose, maps_of, mix, values_of
from quatserve.training.nn.precision import without_autocast
from quatserve.training.nn.whitening import whitening_matrix


def packing(dimension: int) -> list[list[int]]:
    """(d, d) positions of a symmetric matrix's entries in its packed upper triangle, row by row."""
    basis = range(dimension)
    triangle = [(a, b) for a in basis for b in basis if a <= b]
    return [[triangle.index((min(a, b), max(a, b))) for b in basis] for a in basis]


class _BatchNorm(HypercomplexModule):
    """The normalisation of inputs (B, num_features, ...), whatever their number of axes."""

    axes: ClassVar[tuple[int, ...]]

    gamma: nn.Parameter | None  # (C, d(d+1)/2), packed; where it is affine and whitens
    beta: nn.Parameter  # (d, C); where it is affine
    running_mean: Tensor  # (d, C); where it tracks
    running_covariance: Tensor  # (C, d, d); where it tracks and scales
    num_batches_tracked: Tensor  # where it tracks with momentum None, the average over all batches

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-4,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        whiten: bool = True,
        algebra: Algebra | str | None = None,
    ):
        super().__init__(algebra)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats, self.whiten = affine, track_running_stats, whiten
        d, self.channels = self.algebra.dimension, self.algebra.channels(num_features)

        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, device=device, dtype=dtype)

        self.register_parameter("beta", nn.Parameter(empty(d, self.channels)) if affine else None)
        self.gamma = nn.Parameter(empty(self.channels, d * (d + 1) // 2)) if affine and whiten else None
        scales, cumulative = track_running_stats and self.scales, track_running_stats and momentum is None
        count = torch.empty((), device=device, dtype=torch.long) if cumulative else None
        self.register_buffer("running_mean", empty(d, self.channels) if track_running_stats else None)
        self.register_buffer("running_covariance", empty(self.channels, d, d) if scales else None)
        self.register_buffer("num_batches_tracked", count)
        self.reset_running_stats()
        self.reset_parameters()

    @property
    def scales(self) -> bool:
        """Whether the layer divides by a deviation at all."""
        return self.whiten or self.algebra.dimension == 1

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """gamma = I / sqrt(d), beta = 0: fresh outputs have a modulus of 1 on average."""
        d = self.algebra.dimension
        if self.affine:
            self.beta.zero_()
        if self.gamma is not None:
            self.gamma.zero_()
            for a in range(d):
                self.gamma[:, packing(d)[a][a]] = 1 / math.sqrt(d)

    def reset_running_stats(self) -> None:
        """Mean 0, covariance I."""
        if self.track_running_stats:
            self.running_mean.zero_()
        if self.track_running_stats and self.scales:
            self.running_covariance.zero_().diagonal(dim1=1, dim2=2).fill_(1)
        if self.track_running_stats and self.momentum is None:
            self.num_batches_tracked.zero_()

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in self.axes:
            expected = " or ".join(map(str, self.axes))
            raise ValueError(f"{type(self).__name__} takes inputs of {expected} axes; got {x.ndim}")
        if x.shape[1] != self.num_features:
            raise ChannelError(f"the input has {x.shape[1]} channels where the layer has {self.num_features}")
        with without_autocast(x):  # covariances need the range of fp32
            return self._normalise(_wide(x)).to(x.dtype)

    def _normalise(self, x: Tensor) -> Tensor:
        if self.training or not self.track_running_stats:
            return self._by_batch(x)
        if self.scales:
            matrix, offset = self.affine_map()
            return maps_of(mix(matrix, values_of(x, len(offset)), offset))
        return self._moved(x, _wide(self.running_mean))

    def _by_batch(self, x: Tensor) -> Tensor:
        covariance = None
        if self.scales:
            y, mean, covariance = whiten_batch(x, self._gamma(x), self._beta(x), self.eps)
        else:
            mean = batch_mean(values_of(x, self.algebra.dimension))
            y = self._moved(x, mean)
        if self.training and self.track_running_stats:
            self._track(mean, covariance)
        return y

    def _moved(self, x: Tensor, mean: Tensor) -> Tensor:
        return x + (self._beta(x) - mean).reshape(-1, *[1] * (x.ndim - 2))

    def affine_map(self) -> tuple[Tensor, Tensor]:
        """In evaluation y = M x + b: M = gamma W, (C, d, d), and b = beta - M mu, (d, C)."""
        if not self.track_running_stats:
            raise ValueError("without running statistics the layer is no fixed map: track_running_stats=True")
        mean = _wide(self.running_mean)
        matrix = self._gamma(mean)
        if self.scales:
            matrix = compose(matrix, whitening_matrix(_wide(self.running_covariance), self.eps))
        return matrix, self._beta(mean) - (matrix * mean.T.unsqueeze(-2)).sum(-1).T

    def _gamma(self, like: Tensor) -> Tensor:
        """gamma, (C, d, d); the identity where the layer has none."""
        d = self.algebra.dimension
        if self.gamma is None:
            return torch.eye(d, dtype=like.dtype, device=like.device).expand(self.channels, d, d)
        entries = _wide(self.gamma).unbind(1)
        full = torch.stack([entries[position] for row in packing(d) for position in row])
        return full.unflatten(0, (d, d)).permute(2, 0, 1)  # type: ignore[no-any-return]

    def _beta(self, like: Tensor) -> Tensor:
        if self.affine:
            return _wide(self.beta)
        return torch.zeros(self.algebra.dimension, self.channels, dtype=like.dtype, device=like.device)

    @torch.no_grad()
    def _track(self, mean: Tensor, covariance: Tensor | None) -> None:
        weight: Any = self.momentum
        if self.momentum is None:
            weight = 1 / self.num_batches_tracked.add_(1).to(self.running_mean.dtype)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        if covariance is not None:
            self.running_covariance.lerp_(covariance.to(self.running_covariance.dtype), weight)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, {self.algebra.name}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, track_running_stats={self.track_running_stats}, whiten={self.whiten}"
        )


class HypercomplexBatchNorm1d(_BatchNorm):
    """y = gamma L^-1 (x - mu) + beta as in HypercomplexBatchNorm2d, of (B, C) or (B, C, length).

    >>> layer = HypercomplexBatchNorm1d(8, algebra="complex")
    >>> layer(torch.randn(16, 8)).shape
    torch.Size([16, 8])
    """

    axes = (2, 3)


class HypercomplexBatchNorm2d(_BatchNorm):
    """y = gamma L^-1 (x - mu) + beta, with L L^T = Cov(x) + eps I for each hypercomplex channel.

    The input is (B, num_features, height, width), in d blocks of as many channels. With `whiten=False` it is
    what the paper's authors trained their road networks with: for d > 1 only y = x - mu + beta; for d = 1 it
    still divides by the deviation. Neither has a gamma.

    >>> layer = HypercomplexBatchNorm2d(8, algebra="quaternion")
    >>> layer(torch.randn(16, 8, 5, 5)).shape
    torch.Size([16, 8, 5, 5])
    """

    axes = (4,)


class HypercomplexBatchNorm3d(_BatchNorm):
    """y = gamma L^-1 (x - mu) + beta as in HypercomplexBatchNorm2d, of (B, C, depth, height, width).

    >>> layer = HypercomplexBatchNorm3d(8, algebra="octonion")
    >>> layer(torch.randn(2, 8, 3, 5, 5)).shape
    torch.Size([2, 8, 3, 5, 5])
    """

    axes = (5,)


def _wide(x: Tensor) -> Tensor:
    """In fp32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))

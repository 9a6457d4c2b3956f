"""Hypercomplex convolution and linear layer: one real operation with a block-structured weight.

A feature map of C hypercomplex channels is a real tensor of d C channels in d blocks of C, real block first
(quaternions: [r | i | j | k]). The weight W multiplies from the left, as in equation 8 of the paper.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quatserve.training.nn.algebra import Algebra
from quatserve.training.nn.init import Criterion, polar_weight, sigma


class ChannelError(ValueError):
    """A number of real channels that the algebra's dimension does not divide."""


def hypercomplex_channels(algebra: Algebra, channels: int) -> int:
    """Real channels -> hypercomplex channels."""
    if channels <= 0 or channels % algebra.dimension:
        raise ChannelError(
            f"{channels} channels cannot be split into {algebra.name} numbers: "
            f"use a positive multiple of {algebra.dimension}"
        )
    return channels // algebra.dimension


def block_weight(structure: Tensor, weight: Tensor) -> Tensor:
    """(d out, in, ...) components of W -> (d out, d in, ...) real weight whose blocks are L(W).

    Block (c, b) is sum_a structure[a, b, c] W_a, so that sum_b block(c, b) h_b = (W h)_c.
    """
    components = weight.unflatten(0, (len(structure), -1))
    return torch.einsum("abc,aoi...->cobi...", structure, components).flatten(2, 3).flatten(0, 1)


class _HypercomplexLayer(nn.Module):
    """The weight, (d out, in, *kernel) with its components in d blocks, and the constants that lay it out."""

    structure: Tensor

    def __init__(
        self,
        algebra: Algebra,
        in_channels: int,
        out_channels: int,
        kernel: tuple[int, ...],
        criterion: Criterion,
    ):
        super().__init__()
        self.algebra = algebra
        n_in = hypercomplex_channels(algebra, in_channels)
        n_out = hypercomplex_channels(algebra, out_channels)
        area = int(torch.Size(kernel).numel())
        scale = sigma(criterion, algebra.dimension, n_in * area, n_out * area)
        self.weight = nn.Parameter(
            polar_weight(algebra.dimension, (n_out, n_in, *kernel), scale).flatten(0, 1)
        )
        structure = algebra.structure.to(torch.get_default_dtype())
        self.register_buffer("structure", structure, persistent=False)

    def real_weight(self) -> Tensor:
        return block_weight(self.structure, self.weight)

    def extra_repr(self) -> str:
        return f"{self.algebra.name}, weight={tuple(self.weight.shape)}"


class HypercomplexConv2d(_HypercomplexLayer):
    """W * h without bias, 'same' padding; channels are real counts, divisible by d."""

    def __init__(
        self,
        algebra: Algebra,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        stride: int = 1,
        dilation: int = 1,
        criterion: Criterion = "he",
    ):
        super().__init__(algebra, in_channels, out_channels, (kernel_size, kernel_size), criterion)
        self.stride = stride
        self.dilation = dilation
        self.padding = dilation * (kernel_size // 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(
            x, self.real_weight(), stride=self.stride, padding=self.padding, dilation=self.dilation
        )


class HypercomplexLinear(_HypercomplexLayer):
    """W h + b for vectors of d C numbers in d blocks of C."""

    def __init__(
        self,
        algebra: Algebra,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        criterion: Criterion = "glorot",
    ):
        super().__init__(algebra, in_features, out_features, (), criterion)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.real_weight(), self.bias)

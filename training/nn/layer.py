"""The core of convolutions and linear layers: one real operation with a block-structured weight.

The weight W multiplies from the left, as in equation 8 of the paper. It is kept as (d out, in, *kernel), with
out and in counted in hypercomplex channels and its components in d blocks of rows.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from quatserve.training.nn.algebra import Algebra, ChannelError
from quatserve.training.nn.blocks import block_weight, by_group
from quatserve.training.nn.init import Criterion, polar_weight, sigma
from quatserve.training.nn.module import HypercomplexModule


class HypercomplexLayer(HypercomplexModule):
    """y = W x + b, where a subclass says how a real weight meets a real input."""

    transposed: ClassVar[bool] = False  # whether rows of the weight are inputs, as in transposed convolutions

    def __init__(
        self,
        channels: tuple[int, int],  # real ones: in, out
        kernel_size: tuple[int, ...],
        groups: int,
        bias: bool,
        device: Any,
        dtype: torch.dtype | None,
        criterion: Criterion,
        algebra: Algebra | str | None,
    ):
        super().__init__(algebra)
        n_in, n_out = (self.algebra.channels(real) for real in channels)
        if groups < 1 or n_in % groups or n_out % groups:
            raise ChannelError(
                f"{n_in} and {n_out} {self.algebra.name} channels cannot be split into {groups} groups: "
                "use a divisor of both"
            )
        self.kernel_size, self.groups, self.criterion = kernel_size, groups, criterion
        rows, columns = (n_in, n_out // groups) if self.transposed else (n_out, n_in // groups)
        shape = (self.algebra.dimension * rows, columns, *kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(channels[1], device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Polar weights (the paper's section III-E), bias 0."""
        d, (rows, columns, *_) = self.algebra.dimension, self.weight.shape
        area = torch.Size(self.kernel_size).numel()
        outer, inner = rows // d // self.groups * area, columns * area
        scale = sigma(self.criterion, d, *((outer, inner) if self.transposed else (inner, outer)))
        shape = (rows // d, *self.weight.shape[1:])
        self.weight.copy_(polar_weight(d, shape, scale, like=self.weight).flatten(0, 1))
        if self.bias is not None:
            self.bias.zero_()

    def real_weight(self) -> Tensor:
        """What the real operation takes, (d out, d in / groups, *kernel), channels as `by_group` has them."""
        blocks = block_weight(self.algebra, self.weight, transposed=self.transposed)
        return by_group(blocks, self.algebra.dimension, self.groups, 0)

    def forward(self, x: Tensor) -> Tensor:
        d, groups, channels = self.algebra.dimension, self.groups, -len(self.kernel_size) - 1
        bias = None if self.bias is None else by_group(self.bias, d, groups, 0)
        y = self.real_operation(by_group(x, d, groups, channels), self.real_weight(), bias, groups)
        return by_group(y, groups, d, channels)

    def real_operation(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        """What torch's layer of this kind does."""
        raise NotImplementedError

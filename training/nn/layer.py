"""The core of convolutions and linear layers: hypercomplex products by one real operation.

The weight W multiplies from the left, as in equation 8 of the paper. It is kept as (d out, in, *kernel), with
out and in counted in hypercomplex channels and its components in d blocks of rows. The real operation takes
the block matrix of the weight or, where that is quicker, the sums of the algebra's bilinear form.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from quatserve.training.nn.algebra import Algebra, ChannelError
from quatserve.training.nn.bilinear import BilinearForm, combine
from quatserve.training.nn.blocks import block_weight, by_group
from quatserve.training.nn.init import Criterion, polar_weight, sigma
from quatserve.training.nn.module import HypercomplexModule


class HypercomplexLayer(HypercomplexModule):
    """y = W x + b, where a subclass says how a real weight meets a real input."""

    transposed: ClassVar[bool] = False  # whether rows of the weight are inputs, as in transposed convolutions
    # Device -> algebra -> from how many products for each number read or written the bilinear form is quicker
    # than the block matrix. As benchmarks/products.py measured; a device that is not named takes the blocks.
    form_gains_from: ClassVar[dict[str, dict[str, float]]] = {}

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
        form = self._quicker_form(x)
        return self._by_blocks(x) if form is None else self._by_form(x, form)

    def real_operation(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        """What torch's layer of this kind does."""
        raise NotImplementedError

    def real_products(self, values: list[Tensor], weights: list[Tensor]) -> Sequence[Tensor]:
        """Each weight on its value: one real operation with as many groups."""
        y = self.real_operation(torch.cat(values, self._channels), torch.cat(weights), None, len(values))
        return y.chunk(len(values), self._channels)

    @property
    def _channels(self) -> int:
        """The axis of the channels, in front of those of space."""
        return -len(self.kernel_size) - 1

    def _by_blocks(self, x: Tensor) -> Tensor:
        d, groups = self.algebra.dimension, self.groups
        bias = None if self.bias is None else by_group(self.bias, d, groups, 0)
        y = self.real_operation(by_group(x, d, groups, self._channels), self.real_weight(), bias, groups)
        return by_group(y, groups, d, self._channels)

    def _by_form(self, x: Tensor, form: BilinearForm) -> Tensor:
        d = self.algebra.dimension
        values = combine(form.right, x.chunk(d, self._channels))
        weights = combine(form.left, self.weight.chunk(d))
        y = torch.cat(combine(form.out, self.real_products(values, weights)), self._channels)
        return y if self.bias is None else y + self.bias.reshape(-1, *[1] * len(self.kernel_size))

    def _quicker_form(self, x: Tensor) -> BilinearForm | None:
        """The bilinear form where it gains. In half precision its sums would lose digits: never there."""
        device, (rows, columns, *kernel) = x.device.type, self.weight.shape
        least = self.form_gains_from.get(device, {}).get(self.algebra.name)
        if least is None or self.groups > 1 or x.dtype.itemsize < 4 or torch.is_autocast_enabled(device):
            return None
        columns *= self.algebra.dimension
        gains = rows * columns * torch.Size(kernel).numel() >= least * (rows + columns)
        return self.algebra.form if gains else None

"""Hypercomplex transposed convolutions with the arguments of torch's own; channels are real ones."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from quatserve.training.nn.algebra import Algebra
from quatserve.training.nn.conv import FORM_GAINS_FROM, Sizes, per_axis
from quatserve.training.nn.init import Criterion
from quatserve.training.nn.layer import HypercomplexLayer


class _TransposedConvolution(HypercomplexLayer):
    """Over any number of axes of space. The weight has inputs first: (d in, out / groups, *kernel)."""

    transposed = True
    form_gains_from: ClassVar = FORM_GAINS_FROM
    convolve: ClassVar[Callable[..., Tensor]]
    axes: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        criterion: Criterion = "he",
        algebra: Algebra | str | None = None,
    ):
        if padding_mode != "zeros":
            raise ValueError(f"padding_mode {padding_mode!r}: transposed convolutions know 'zeros' only")
        kernel = per_axis("kernel_size", kernel_size, self.axes)
        super().__init__((in_channels, out_channels), kernel, groups, bias, device, dtype, criterion, algebra)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.stride = per_axis("stride", stride, self.axes)
        self.padding = per_axis("padding", padding, self.axes)
        self.output_padding = per_axis("output_padding", output_padding, self.axes)
        self.dilation = per_axis("dilation", dilation, self.axes)

    def real_operation(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        sizes = self.stride, self.padding, self.output_padding, groups, self.dilation
        return type(self).convolve(x, weight, bias, *sizes)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, {self.algebra.name}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, output_padding={self.output_padding}, "
            f"groups={self.groups}, bias={self.bias is not None}, dilation={self.dilation}"
        )


class HypercomplexConvTranspose1d(_TransposedConvolution):
    """y = W * x + b as in HypercomplexConvTranspose2d, over one axis: (B, in, length) -> (B, out, length').

    >>> layer = HypercomplexConvTranspose1d(16, 8, 2, stride=2, algebra="quaternion")
    >>> layer(torch.randn(2, 16, 5)).shape
    torch.Size([2, 8, 10])
    """

    axes = 1
    convolve = staticmethod(F.conv_transpose1d)


class HypercomplexConvTranspose2d(_TransposedConvolution):
    """y = W * x + b, where every value of the input is spread over the output by W, from the left.

    (B, in, height, width) -> (B, out, height', width'), channels in d blocks of as many, real block first.

    >>> layer = HypercomplexConvTranspose2d(16, 8, 2, stride=2, algebra="octonion")
    >>> layer(torch.randn(2, 16, 5, 5)).shape, layer.weight.shape
    (torch.Size([2, 8, 10, 10]), torch.Size([16, 1, 2, 2]))
    """

    axes = 2
    convolve = staticmethod(F.conv_transpose2d)


class HypercomplexConvTranspose3d(_TransposedConvolution):
    """y = W * x + b as in HypercomplexConvTranspose2d, over three axes: (B, in, depth, height, width).

    >>> layer = HypercomplexConvTranspose3d(16, 8, 2, stride=2, algebra="complex")
    >>> layer(torch.randn(2, 16, 2, 3, 3)).shape
    torch.Size([2, 8, 4, 6, 6])
    """

    axes = 3
    convolve = staticmethod(F.conv_transpose3d)

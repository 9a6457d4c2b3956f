"""Hypercomplex convolutions with the arguments of torch's own; channels are real ones."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from quatserve.training.nn.algebra import Algebra
from quatserve.training.nn.init import Criterion
from quatserve.training.nn.layer import HypercomplexLayer

Sizes = int | tuple[int, ...]
Padding = Literal["same", "valid"]
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
# 3 x 3 layers of n channels make 9 n / 2 products for each number that they read or write.
FORM_GAINS_FROM = {"cpu": {"complex": 512 * 9 / 2, "quaternion": 256 * 9 / 2, "octonion": 512 * 9 / 2}}


def per_axis(name: str, sizes: Sizes, axes: int) -> tuple[int, ...]:
    """One size for all axes of space, or one for each."""
    sizes = (sizes,) * axes if isinstance(sizes, int) else tuple(sizes)
    if len(sizes) != axes:
        raise ValueError(f"{name} {sizes} has {len(sizes)} numbers: give one, or {axes}")
    return sizes


class _Convolution(HypercomplexLayer):
    """Over any number of axes of space."""

    form_gains_from: ClassVar = FORM_GAINS_FROM
    convolve: ClassVar[Callable[..., Tensor]]
    axes: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        criterion: Criterion = "he",
        algebra: Algebra | str | None = None,
    ):
        kernel = per_axis("kernel_size", kernel_size, self.axes)
        super().__init__((in_channels, out_channels), kernel, groups, bias, device, dtype, criterion, algebra)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.stride = per_axis("stride", stride, self.axes)
        self.dilation = per_axis("dilation", dilation, self.axes)
        self.padding = padding if isinstance(padding, str) else per_axis("padding", padding, self.axes)
        self.padding_mode = padding_mode
        self._check_padding()

    def _check_padding(self) -> None:
        if isinstance(self.padding, str) and self.padding not in get_args(Padding):
            raise ValueError(f"padding {self.padding!r} is unknown: use a number, 'same' or 'valid'")
        if self.padding == "same" and max(self.stride) > 1:
            raise ValueError(
                f"padding 'same' needs stride 1, not {self.stride}: give the padding as a number"
            )
        if self.padding_mode not in get_args(PaddingMode):
            modes = ", ".join(get_args(PaddingMode))
            raise ValueError(f"padding_mode {self.padding_mode!r} is unknown: use one of {modes}")

    def real_operation(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self._margins(), self.padding_mode), 0
        return type(self).convolve(x, weight, bias, self.stride, padding, self.dilation, groups)

    def _margins(self) -> list[int]:
        """The padding as F.pad takes it: before and after, the last axis first."""
        if isinstance(self.padding, tuple):
            return [size for size in reversed(self.padding) for _ in range(2)]
        if self.padding == "valid":
            return [0] * 2 * self.axes
        spans = [
            dilation * (size - 1) for dilation, size in zip(self.dilation, self.kernel_size, strict=True)
        ]
        return [margin for span in reversed(spans) for margin in (span // 2, span - span // 2)]

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, {self.algebra.name}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding!r}, dilation={self.dilation}, "
            f"groups={self.groups}, bias={self.bias is not None}, padding_mode={self.padding_mode!r}"
        )


class HypercomplexConv1d(_Convolution):
    """y = W * x + b as in HypercomplexConv2d, over one axis: (B, in, length) -> (B, out, length').

    >>> layer = HypercomplexConv1d(8, 16, 3, padding="same", algebra="quaternion")
    >>> layer(torch.randn(2, 8, 10)).shape
    torch.Size([2, 16, 10])
    """

    axes = 1
    convolve = staticmethod(F.conv1d)


class HypercomplexConv2d(_Convolution):
    """y = W * x + b: a convolution whose every product is one of hypercomplex numbers, W from the left.

    (B, in, height, width) -> (B, out, height', width'), channels in d blocks of as many, real block first.
    `criterion` scales the first weights: "he" or "glorot".

    >>> layer = HypercomplexConv2d(8, 16, 3, padding=1, algebra="octonion")
    >>> layer(torch.randn(2, 8, 10, 10)).shape, layer.weight.shape
    (torch.Size([2, 16, 10, 10]), torch.Size([16, 1, 3, 3]))
    """

    axes = 2
    convolve = staticmethod(F.conv2d)


class HypercomplexConv3d(_Convolution):
    """y = W * x + b as in HypercomplexConv2d, over three axes: (B, in, depth, height, width).

    >>> layer = HypercomplexConv3d(8, 16, (1, 3, 3), padding="same", algebra="complex")
    >>> layer(torch.randn(2, 8, 4, 6, 6)).shape
    torch.Size([2, 16, 4, 6, 6])
    """

    axes = 3
    convolve = staticmethod(F.conv3d)

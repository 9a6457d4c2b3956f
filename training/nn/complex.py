"""The layers of complex numbers. Channels are real ones, in blocks [r | i]."""

from quatserve.training.nn.algebra import COMPLEX
from quatserve.training.nn.conv import HypercomplexConv1d, HypercomplexConv2d, HypercomplexConv3d
from quatserve.training.nn.conv_transpose import (
    HypercomplexConvTranspose1d,
    HypercomplexConvTranspose2d,
    HypercomplexConvTranspose3d,
)
from quatserve.training.nn.dropout import HypercomplexDropout
from quatserve.training.nn.linear import HypercomplexLinear
from quatserve.training.nn.norm import (
    HypercomplexBatchNorm1d,
    HypercomplexBatchNorm2d,
    HypercomplexBatchNorm3d,
)


class ComplexLinear(HypercomplexLinear):
    """The product of complex numbers:

        y_r = W_r x_r - W_i x_i + b_r
        y_i = W_r x_i + W_i x_r + b_i

    >>> ComplexLinear(8, 16)(torch.randn(2, 8)).shape
    torch.Size([2, 16])
    """

    algebra = COMPLEX


class ComplexConv2d(HypercomplexConv2d):
    """The product of complex numbers, summed over channels and pixels:

        y_r = W_r * x_r - W_i * x_i + b_r
        y_i = W_r * x_i + W_i * x_r + b_i

    >>> layer = ComplexConv2d(8, 16, 3, padding=1)
    >>> layer(torch.randn(2, 8, 5, 5)).shape
    torch.Size([2, 16, 5, 5])
    """

    algebra = COMPLEX


class ComplexConv1d(HypercomplexConv1d):
    """y = W * x + b as in ComplexConv2d, over one axis.

    >>> ComplexConv1d(8, 16, 3)(torch.randn(2, 8, 5)).shape
    torch.Size([2, 16, 3])
    """

    algebra = COMPLEX


class ComplexConv3d(HypercomplexConv3d):
    """y = W * x + b as in ComplexConv2d, over three axes.

    >>> ComplexConv3d(8, 16, 3)(torch.randn(2, 8, 5, 5, 5)).shape
    torch.Size([2, 16, 3, 3, 3])
    """

    algebra = COMPLEX


class ComplexConvTranspose2d(HypercomplexConvTranspose2d):
    """y = W * x + b as in ComplexConv2d, where each value of x is spread over y by W.

    >>> layer = ComplexConvTranspose2d(16, 8, 2, stride=2)
    >>> layer(torch.randn(2, 16, 5, 5)).shape
    torch.Size([2, 8, 10, 10])
    """

    algebra = COMPLEX


class ComplexConvTranspose1d(HypercomplexConvTranspose1d):
    """y = W * x + b as in ComplexConvTranspose2d, over one axis.

    >>> ComplexConvTranspose1d(16, 8, 2, stride=2)(torch.randn(2, 16, 5)).shape
    torch.Size([2, 8, 10])
    """

    algebra = COMPLEX


class ComplexConvTranspose3d(HypercomplexConvTranspose3d):
    """y = W * x + b as in ComplexConvTranspose2d, over three axes.

    >>> ComplexConvTranspose3d(16, 8, 2, stride=2)(torch.randn(2, 16, 2, 2, 2)).shape
    torch.Size([2, 8, 4, 4, 4])
    """

    algebra = COMPLEX


class ComplexBatchNorm2d(HypercomplexBatchNorm2d):
    """y = gamma L^-1 (x - mu) + beta, with L L^T = Cov(x) + eps I, 2 x 2 for each channel.

    >>> ComplexBatchNorm2d(8)(torch.randn(4, 8, 5, 5)).shape
    torch.Size([4, 8, 5, 5])
    """

    algebra = COMPLEX


class ComplexBatchNorm1d(HypercomplexBatchNorm1d):
    """y = gamma L^-1 (x - mu) + beta as in ComplexBatchNorm2d, of (B, C) or (B, C, length).

    >>> ComplexBatchNorm1d(8)(torch.randn(4, 8)).shape
    torch.Size([4, 8])
    """

    algebra = COMPLEX


class ComplexBatchNorm3d(HypercomplexBatchNorm3d):
    """y = gamma L^-1 (x - mu) + beta as in ComplexBatchNorm2d, of (B, C, depth, height, width).

    >>> ComplexBatchNorm3d(8)(torch.randn(4, 8, 2, 5, 5)).shape
    torch.Size([4, 8, 2, 5, 5])
    """

    algebra = COMPLEX


class ComplexDropout(HypercomplexDropout):
    """y = m x / (1 - p) in training, one m for all 2 components: 0 with probability p, else 1.

    >>> ComplexDropout(0.5)(torch.ones(2, 8)).shape
    torch.Size([2, 8])
    """

    algebra = COMPLEX

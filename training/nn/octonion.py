"""The layers of octonions. Channels are real ones, in blocks [e0 | e1 | ... | e7]."""

from quatserve.training.nn.algebra import OCTONION
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


class OctonionLinear(HypercomplexLinear):
    """The product of octonions, W from the left:

        y_c = sum of +-W_a x_b over e_a e_b = +-e_c, + b_c

    >>> OctonionLinear(8, 16)(torch.randn(2, 8)).shape
    torch.Size([2, 16])
    """

    algebra = OCTONION


class OctonionConv2d(HypercomplexConv2d):
    """The product of octonions, W from the left, summed over channels and pixels:

        y_c = sum of +-W_a * x_b over e_a e_b = +-e_c, + b_c

    >>> layer = OctonionConv2d(8, 16, 3, padding=1)
    >>> layer(torch.randn(2, 8, 5, 5)).shape
    torch.Size([2, 16, 5, 5])
    """

    algebra = OCTONION


class OctonionConv1d(HypercomplexConv1d):
    """y = W * x + b as in OctonionConv2d, over one axis.

    >>> OctonionConv1d(8, 16, 3)(torch.randn(2, 8, 5)).shape
    torch.Size([2, 16, 3])
    """

    algebra = OCTONION


class OctonionConv3d(HypercomplexConv3d):
    """y = W * x + b as in OctonionConv2d, over three axes.

    >>> OctonionConv3d(8, 16, 3)(torch.randn(2, 8, 5, 5, 5)).shape
    torch.Size([2, 16, 3, 3, 3])
    """

    algebra = OCTONION


class OctonionConvTranspose2d(HypercomplexConvTranspose2d):
    """y = W * x + b as in OctonionConv2d, where each value of x is spread over y by W.

    >>> layer = OctonionConvTranspose2d(16, 8, 2, stride=2)
    >>> layer(torch.randn(2, 16, 5, 5)).shape
    torch.Size([2, 8, 10, 10])
    """

    algebra = OCTONION


class OctonionConvTranspose1d(HypercomplexConvTranspose1d):
    """y = W * x + b as in OctonionConvTranspose2d, over one axis.

    >>> OctonionConvTranspose1d(16, 8, 2, stride=2)(torch.randn(2, 16, 5)).shape
    torch.Size([2, 8, 10])
    """

    algebra = OCTONION


class OctonionConvTranspose3d(HypercomplexConvTranspose3d):
    """y = W * x + b as in OctonionConvTranspose2d, over three axes.

    >>> OctonionConvTranspose3d(16, 8, 2, stride=2)(torch.randn(2, 16, 2, 2, 2)).shape
    torch.Size([2, 8, 4, 4, 4])
    """

    algebra = OCTONION


class OctonionBatchNorm2d(HypercomplexBatchNorm2d):
    """y = gamma L^-1 (x - mu) + beta, with L L^T = Cov(x) + eps I, 8 x 8 for each channel.

    >>> OctonionBatchNorm2d(8)(torch.randn(4, 8, 5, 5)).shape
    torch.Size([4, 8, 5, 5])
    """

    algebra = OCTONION


class OctonionBatchNorm1d(HypercomplexBatchNorm1d):
    """y = gamma L^-1 (x - mu) + beta as in OctonionBatchNorm2d, of (B, C) or (B, C, length).

    >>> OctonionBatchNorm1d(8)(torch.randn(4, 8)).shape
    torch.Size([4, 8])
    """

    algebra = OCTONION


class OctonionBatchNorm3d(HypercomplexBatchNorm3d):
    """y = gamma L^-1 (x - mu) + beta as in OctonionBatchNorm2d, of (B, C, depth, height, width).

    >>> OctonionBatchNorm3d(8)(torch.randn(4, 8, 2, 5, 5)).shape
    torch.Size([4, 8, 2, 5, 5])
    """

    algebra = OCTONION


class OctonionDropout(HypercomplexDropout):
    """y = m x / (1 - p) in training, one m for all 8 components: 0 with probability p, else 1.

    >>> OctonionDropout(0.5)(torch.ones(2, 8)).shape
    torch.Size([2, 8])
    """

    algebra = OCTONION

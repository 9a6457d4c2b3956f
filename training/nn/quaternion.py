"""The layers of quaternions. Channels are real ones, in blocks [r | i | j | k]."""

from quatserve.training.nn.algebra import QUATERNION
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


class QuaternionLinear(HypercomplexLinear):
    """Hamilton's product, W from the left:

        y_r = W_r x_r - W_i x_i - W_j x_j - W_k x_k + b_r
        y_i = W_r x_i + W_i x_r + W_j x_k - W_k x_j + b_i
        y_j = W_r x_j - W_i x_k + W_j x_r + W_k x_i + b_j
        y_k = W_r x_k + W_i x_j - W_j x_i + W_k x_r + b_k

    >>> QuaternionLinear(8, 16)(torch.randn(2, 8)).shape
    torch.Size([2, 16])
    """

    algebra = QUATERNION


class QuaternionConv2d(HypercomplexConv2d):
    """Hamilton's product, W from the left, summed over channels and pixels:

        y_r = W_r * x_r - W_i * x_i - W_j * x_j - W_k * x_k + b_r
        y_i = W_r * x_i + W_i * x_r + W_j * x_k - W_k * x_j + b_i
        y_j = W_r * x_j - W_i * x_k + W_j * x_r + W_k * x_i + b_j
        y_k = W_r * x_k + W_i * x_j - W_j * x_i + W_k * x_r + b_k

    >>> layer = QuaternionConv2d(8, 16, 3, padding=1)
    >>> layer(torch.randn(2, 8, 5, 5)).shape
    torch.Size([2, 16, 5, 5])
    """

    algebra = QUATERNION


class QuaternionConv1d(HypercomplexConv1d):
    """y = W * x + b as in QuaternionConv2d, over one axis.

    >>> QuaternionConv1d(8, 16, 3)(torch.randn(2, 8, 5)).shape
    torch.Size([2, 16, 3])
    """

    algebra = QUATERNION


class QuaternionConv3d(HypercomplexConv3d):
    """y = W * x + b as in QuaternionConv2d, over three axes.

    >>> QuaternionConv3d(8, 16, 3)(torch.randn(2, 8, 5, 5, 5)).shape
    torch.Size([2, 16, 3, 3, 3])
    """

    algebra = QUATERNION


class QuaternionConvTranspose2d(HypercomplexConvTranspose2d):
    """y = W * x + b as in QuaternionConv2d, where each value of x is spread over y by W.

    >>> layer = QuaternionConvTranspose2d(16, 8, 2, stride=2)
    >>> layer(torch.randn(2, 16, 5, 5)).shape
    torch.Size([2, 8, 10, 10])
    """

    algebra = QUATERNION


class QuaternionConvTranspose1d(HypercomplexConvTranspose1d):
    """y = W * x + b as in QuaternionConvTranspose2d, over one axis.

    >>> QuaternionConvTranspose1d(16, 8, 2, stride=2)(torch.randn(2, 16, 5)).shape
    torch.Size([2, 8, 10])
    """

    algebra = QUATERNION


class QuaternionConvTranspose3d(HypercomplexConvTranspose3d):
    """y = W * x + b as in QuaternionConvTranspose2d, over three axes.

    >>> QuaternionConvTranspose3d(16, 8, 2, stride=2)(torch.randn(2, 16, 2, 2, 2)).shape
    torch.Size([2, 8, 4, 4, 4])
    """

    algebra = QUATERNION


class QuaternionBatchNorm2d(HypercomplexBatchNorm2d):
    """y = gamma L^-1 (x - mu) + beta, with L L^T = Cov(x) + eps I, 4 x 4 for each channel.

    >>> QuaternionBatchNorm2d(8)(torch.randn(4, 8, 5, 5)).shape
    torch.Size([4, 8, 5, 5])
    """

    algebra = QUATERNION


class QuaternionBatchNorm1d(HypercomplexBatchNorm1d):
    """y = gamma L^-1 (x - mu) + beta as in QuaternionBatchNorm2d, of (B, C) or (B, C, length).

    >>> QuaternionBatchNorm1d(8)(torch.randn(4, 8)).shape
    torch.Size([4, 8])
    """

    algebra = QUATERNION


class QuaternionBatchNorm3d(HypercomplexBatchNorm3d):
    """y = gamma L^-1 (x - mu) + beta as in QuaternionBatchNorm2d, of (B, C, depth, height, width).

    >>> QuaternionBatchNorm3d(8)(torch.randn(4, 8, 2, 5, 5)).shape
    torch.Size([4, 8, 2, 5, 5])
    """

    algebra = QUATERNION


class QuaternionDropout(HypercomplexDropout):
    """y = m x / (1 - p) in training, one m for all 4 components: 0 with probability p, else 1.

    >>> QuaternionDropout(0.5)(torch.ones(2, 8)).shape
    torch.Size([2, 8])
    """

    algebra = QUATERNION

"""Hypercomplex layers for anybody's model: `from quatserve.nn import QuaternionConv2d`.

They take the arguments of torch's layers. Channels are real ones, in blocks of components: [r | i | j | k].
"""

from quatserve.training.nn.algebra import ALGEBRAS, COMPLEX, OCTONION, QUATERNION, REAL, Algebra
from quatserve.training.nn.complex import (
    ComplexBatchNorm1d,
    ComplexBatchNorm2d,
    ComplexBatchNorm3d,
    ComplexConv1d,
    ComplexConv2d,
    ComplexConv3d,
    ComplexConvTranspose1d,
    ComplexConvTranspose2d,
    ComplexConvTranspose3d,
    ComplexDropout,
    ComplexLinear,
)
from quatserve.training.nn.conv import HypercomplexConv1d, HypercomplexConv2d, HypercomplexConv3d
from quatserve.training.nn.conv_transpose import (
    HypercomplexConvTranspose1d,
    HypercomplexConvTranspose2d,
    HypercomplexConvTranspose3d,
)
from quatserve.training.nn.dropout import HypercomplexDropout
from quatserve.training.nn.join import join_components
from quatserve.training.nn.linear import HypercomplexLinear
from quatserve.training.nn.norm import (
    HypercomplexBatchNorm1d,
    HypercomplexBatchNorm2d,
    HypercomplexBatchNorm3d,
)
from quatserve.training.nn.octonion import (
    OctonionBatchNorm1d,
    OctonionBatchNorm2d,
    OctonionBatchNorm3d,
    OctonionConv1d,
    OctonionConv2d,
    OctonionConv3d,
    OctonionConvTranspose1d,
    OctonionConvTranspose2d,
    OctonionConvTranspose3d,
    OctonionDropout,
    OctonionLinear,
)
from quatserve.training.nn.quaternion import (
    QuaternionBatchNorm1d,
    QuaternionBatchNorm2d,
    QuaternionBatchNorm3d,
    QuaternionConv1d,
    QuaternionConv2d,
    QuaternionConv3d,
    QuaternionConvTranspose1d,
    QuaternionConvTranspose2d,
    QuaternionConvTranspose3d,
    QuaternionDropout,
    QuaternionLinear,
)

__all__ = [
    "ALGEBRAS",
    "COMPLEX",
    "OCTONION",
    "QUATERNION",
    "REAL",
    "Algebra",
    "ComplexBatchNorm1d",
    "ComplexBatchNorm2d",
    "ComplexBatchNorm3d",
    "ComplexConv1d",
    "ComplexConv2d",
    "ComplexConv3d",
    "ComplexConvTranspose1d",
    "ComplexConvTranspose2d",
    "ComplexConvTranspose3d",
    "ComplexDropout",
    "ComplexLinear",
    "HypercomplexBatchNorm1d",
    "HypercomplexBatchNorm2d",
    "HypercomplexBatchNorm3d",
    "HypercomplexConv1d",
    "HypercomplexConv2d",
    "HypercomplexConv3d",
    "HypercomplexConvTranspose1d",
    "HypercomplexConvTranspose2d",
    "HypercomplexConvTranspose3d",
    "HypercomplexDropout",
    "HypercomplexLinear",
    "OctonionBatchNorm1d",
    "OctonionBatchNorm2d",
    "OctonionBatchNorm3d",
    "OctonionConv1d",
    "OctonionConv2d",
    "OctonionConv3d",
    "OctonionConvTranspose1d",
    "OctonionConvTranspose2d",
    "OctonionConvTranspose3d",
    "OctonionDropout",
    "OctonionLinear",
    "QuaternionBatchNorm1d",
    "QuaternionBatchNorm2d",
    "QuaternionBatchNorm3d",
    "QuaternionConv1d",
    "QuaternionConv2d",
    "QuaternionConv3d",
    "QuaternionConvTranspose1d",
    "QuaternionConvTranspose2d",
    "QuaternionConvTranspose3d",
    "QuaternionDropout",
    "QuaternionLinear",
    "join_components",
]

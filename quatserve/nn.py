"""Hypercomplex layers for anybody's model: `from quatserve.nn import HypercomplexConv2d`."""

from quatserve.training.nn.algebra import ALGEBRAS, COMPLEX, OCTONION, QUATERNION, REAL, Algebra
from quatserve.training.nn.conv import HypercomplexConv2d, HypercomplexLinear
from quatserve.training.nn.join import join_components
from quatserve.training.nn.norm import HypercomplexBatchNorm2d

__all__ = [
    "ALGEBRAS",
    "COMPLEX",
    "OCTONION",
    "QUATERNION",
    "REAL",
    "Algebra",
    "HypercomplexBatchNorm2d",
    "HypercomplexConv2d",
    "HypercomplexLinear",
    "join_components",
]

"""A normalisation in evaluation as one affine map of its channels, y = M x + b.

    M = gamma W,   b = beta - M mu,   W = L^-1,   L L^T = V + eps I

for our whitening normalisation: one d x d block per hypercomplex channel, so one matrix of d x d diagonal
blocks on all d C real channels (d blocks of C, real block first). torch's BatchNorm is the diagonal case.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from quatserve.export.folding.trace import FoldError
from quatserve.training.nn.moments import mixing_matrix
from quatserve.training.nn.norm import HypercomplexBatchNorm2d, regularised

NORMS = (HypercomplexBatchNorm2d, _BatchNorm)
Map = tuple[Tensor, Tensor]  # (channels, channels) and (channels,)


def normalisation_map(norm: nn.Module, name: str) -> Map:
    """M and b of a normalisation with running statistics."""
    if norm.running_mean is None:
        raise FoldError(
            f"{name}: it normalises by the statistics of each batch (track_running_stats=False), "
            "so it is no fixed map; train it with running statistics"
        )
    return _whitening_map(norm, name) if isinstance(norm, HypercomplexBatchNorm2d) else _real_map(norm)


def is_diagonal(matrix: Tensor) -> bool:
    return bool((matrix == torch.diag(matrix.diagonal())).all())


def _whitening_map(norm: HypercomplexBatchNorm2d, name: str) -> Map:
    mean = norm.running_mean
    if not norm.scales:  # it only centres
        return torch.eye(mean.numel(), dtype=mean.dtype), (norm.beta - mean).flatten()
    _check_positive_definite(norm, name)
    matrices, offset = norm.affine(mean, norm.running_covariance)
    return mixing_matrix(matrices), offset.flatten()


def _check_positive_definite(norm: HypercomplexBatchNorm2d, name: str) -> None:
    """V + eps I must have a Cholesky factor, or the whitening is not defined."""
    covariance = norm.running_covariance
    _, info = torch.linalg.cholesky_ex(regularised(covariance, norm.eps))
    if bad := info.nonzero().flatten().tolist():
        smallest = float(torch.linalg.eigvalsh(covariance[bad[0]]).min())
        raise FoldError(
            f"{name}: covariance of channel {bad[0]} is not positive definite (eigenvalue {smallest:.3g}, "
            f"eps {norm.eps:g}); the weights are damaged, train it again"
        )


def _real_map(norm: nn.Module) -> Map:
    assert isinstance(norm, _BatchNorm)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var + norm.eps).rsqrt()
    if norm.affine:
        scale = scale * norm.weight
    offset = -scale * norm.running_mean
    return torch.diag(scale), offset + norm.bias if norm.affine else offset

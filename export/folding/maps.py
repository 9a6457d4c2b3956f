"""A normalisation in evaluation as one affine map of its channels, y = M x + b.

    M = gamma W,   b = beta - M mu,   W = L^-1,   L L^T = V + eps I

for our whitening normalisation: one d x d block per hypercomplex channel, so one matrix of d x d diagonal
blocks on all d C real channels (d blocks of C, real block first). torch's BatchNorm is the diagonal case.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from quatserve.export.folding.trace import WHITENING, FoldError, Whitening
from quatserve.training.nn.moments import mixing_matrix
from quatserve.training.nn.whitening import NotPositiveDefiniteError, check_covariance

NORMS = (*WHITENING, _BatchNorm)
Map = tuple[Tensor, Tensor]  # (channels, channels) and (channels,)


def normalisation_map(norm: nn.Module, name: str) -> Map:
    """M and b of a normalisation with running statistics."""
    if norm.running_mean is None:
        raise FoldError(
            f"{name}: it normalises by the statistics of each batch (track_running_stats=False), "
            "so it is no fixed map; train it with running statistics"
        )
    return _whitening_map(norm, name) if isinstance(norm, WHITENING) else _real_map(norm)


def is_diagonal(matrix: Tensor) -> bool:
    return bool((matrix == torch.diag(matrix.diagonal())).all())


def _whitening_map(norm: Whitening, name: str) -> Map:
    if norm.scales:
        try:
            check_covariance(norm.running_covariance, norm.eps)
        except NotPositiveDefiniteError as error:
            raise FoldError(f"{name}: {error}; the weights are damaged, train it again") from error
    matrices, offset = norm.affine_map()
    return mixing_matrix(matrices), offset.flatten()


def _real_map(norm: nn.Module) -> Map:
    assert isinstance(norm, _BatchNorm)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var + norm.eps).rsqrt()
    if norm.affine:
        scale = scale * norm.weight
    offset = -scale * norm.running_mean
    return torch.diag(scale), offset + norm.bias if norm.affine else offset

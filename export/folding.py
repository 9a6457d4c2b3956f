"""The mathematics of the fold, as pure functions on float64 tensors; `docs/fold.md` derives them.

In evaluation a whitening normalisation is one affine map a hypercomplex channel,

    y = M x + b,   M = gamma W,   b = beta - M mu ,   W = L^-1,   L L^T = V + eps I

(where eps may give way to a part of a variance: `regularised`).

On all d C real channels (d blocks of C, real block first) it is one matrix of d x d diagonal blocks. Behind a
convolution it is absorbed: M (K * x) + b = (M K) * x + b, exactly, padding included.
"""

import torch
from torch import Tensor

from quatserve.training.nn.moments import mixing_matrix
from quatserve.training.nn.norm import packing
from quatserve.training.nn.whitening import check_covariance, whitening_matrix


def normalisation_map(
    mean: Tensor, covariance: Tensor | None, gamma: Tensor | None, beta: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Running statistics -> M, (d C, d C), and b, (d C,).

    mean and beta (d, C), covariance (C, d, d), gamma packed (C, d(d+1)/2). Without a covariance the layer
    only centres: M = I. Without a gamma it only whitens: M = W.
    """
    if covariance is None:
        return torch.eye(mean.numel(), dtype=mean.dtype), (beta - mean).flatten()
    check_covariance(covariance, eps)
    matrices = whitening_matrix(covariance, eps)
    if gamma is not None:
        matrices = gamma[:, packing(len(mean))] @ matrices
    matrix = mixing_matrix(matrices)
    return matrix, beta.flatten() - matrix @ mean.flatten()


def absorb(weight: Tensor, matrix: Tensor) -> Tensor:
    """Kernel (out, in, h, w) followed by a matrix on its outputs -> the kernel M K of both."""
    return torch.einsum("po,oihw->pihw", matrix, weight)


def absorb_into_reader(weight: Tensor, matrix: Tensor) -> Tensor:
    """A matrix on the inputs of kernel (out, in, h, w) -> the kernel K M of both.

    Exact with zero padding, because a matrix without offset keeps zero at zero.
    """
    return torch.einsum("oihw,ij->ojhw", weight, matrix)


def joined_order(dimension: int, width: int) -> Tensor:
    """Channel order of a plain concatenation [a, b] against the component-wise [a_r b_r | a_i b_i | ...].

    Position p of the plain one holds channel order[p] of the other; a and b have `width` channels each.
    """
    joined = torch.arange(2 * width).reshape(2, dimension, -1).transpose(0, 1).flatten()
    return joined.argsort()


def is_diagonal(matrix: Tensor) -> bool:
    return bool((matrix == torch.diag(matrix.diagonal())).all())

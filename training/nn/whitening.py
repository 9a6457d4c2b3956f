"""The whitening matrix of a covariance: W = L^-1 with L L^T = V + eps I.

Up to four components it is written out entry by entry: 8 scalar operations for d = 2, 56 for d = 4. The
compiler fuses them, where a GPU would wait for a library call in each layer. A covariance has no negative
eigenvalue, so no pivot of V + eps I is below eps: pivots are bounded by it, and W is never larger than that
allows. Octonions use torch.linalg, where a matrix without a factor gives NaN.
"""

import math

import torch
from torch import Tensor

RELATIVE_EPS = 2.0**-18  # 32 units in the last place of fp32
UNROLLED_DIMENSION = 4


class NotPositiveDefiniteError(ValueError):
    """A covariance that has no Cholesky factor; the message says of which channel."""


def regularisation(variances: Tensor, eps: float) -> Tensor:
    """What is added to each variance: eps, or RELATIVE_EPS of the variance if that is larger.

    Otherwise duplicated channels of a large variance would have no Cholesky factor in fp32. It is the same in
    float64, so that a network means the same there.
    """
    return (RELATIVE_EPS * variances).clamp_min(eps)


def regularised(covariance: Tensor, eps: float) -> Tensor:
    """V + eps I, with the eps of `regularisation`."""
    added = regularisation(covariance.diagonal(dim1=-2, dim2=-1), eps)
    return covariance + torch.diag_embed(added)


def whitening_matrix(covariance: Tensor, eps: float) -> Tensor:
    """(C, d, d) covariances V -> W = L^-1, lower triangular, with L L^T = V + eps I."""
    if covariance.shape[-1] <= UNROLLED_DIMENSION:
        return _unrolled(covariance, eps)
    factor, info = torch.linalg.cholesky_ex(regularised(covariance, eps))
    identity = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    W: Tensor = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
    return W.masked_fill((info != 0)[:, None, None], math.nan)


def _unrolled(covariance: Tensor, eps: float) -> Tensor:
    """The same entry by entry: each is a vector over the channels, which lie innermost in memory."""
    d = covariance.shape[-1]
    V = [row.unbind() for row in covariance.permute(1, 2, 0).unbind()]
    variances = torch.stack([V[j][j] for j in range(d)])
    added = regularisation(variances, eps)
    least, regular = added.unbind(), (variances + added).unbind()
    zero = torch.zeros_like(V[0][0])
    L, W = ([[zero] * d for _ in range(d)] for _ in range(2))
    for j in range(d):
        pivot = regular[j]
        for k in range(j):
            pivot = torch.addcmul(pivot, L[j][k], L[j][k], value=-1)
        W[j][j] = scale = torch.maximum(pivot, least[j]).rsqrt()
        for i in range(j + 1, d):
            entry = V[i][j]
            for k in range(j):
                entry = torch.addcmul(entry, L[i][k], L[j][k], value=-1)
            L[i][j] = entry * scale
        for i in range(j):  # from row j of L W = I
            entry = L[j][i] * W[i][i]
            for k in range(i + 1, j):
                entry = torch.addcmul(entry, L[j][k], W[k][i])
            W[j][i] = entry * -scale
    return torch.stack([entry for row in W for entry in row]).unflatten(0, (d, d)).permute(2, 0, 1)  # type: ignore[no-any-return]


def check_covariance(covariance: Tensor, eps: float) -> None:
    """V + eps I of every channel must have a Cholesky factor, or the whitening is not defined."""
    _, info = torch.linalg.cholesky_ex(regularised(covariance, eps).double())
    if bad := info.nonzero().flatten().tolist():
        found = covariance[bad[0]]
        least = float(torch.linalg.eigvalsh(found).min()) if found.isfinite().all() else math.nan
        raise NotPositiveDefiniteError(
            f"covariance of channel {bad[0]} is not positive definite (eigenvalue {least:.3g}, eps {eps:g})"
        )

"""Orthogonal steps for hypercomplex kernels: Muon (Jordan et al., 2024) within the algebra.

SGD follows the gradient G of a kernel; Muon follows the orthogonal matrix nearest to it, U V^T of
G = U S V^T: every direction of the kernel learns at the same pace. The matrix is the one that the layer
really applies, the block matrix L(W), taps and input channels side by side. L turns products into products
and conjugates into transposes (up to quaternions): U V^T of a block matrix is a block matrix again, and its
first block column holds its components. Octonions are not associative: there the column is an approximation.

Each kernel is kept at the norm of an orthogonal matrix, so that the rate is the relative length of a step.
Most feed a normalisation, which undoes the scale; the last of a block adds to the residual stream, and there
the gamma before it is what scales. (torch.optim.Muon takes plain matrices only.)
"""

from collections.abc import Iterable
from itertools import groupby

import torch
from torch import Tensor, nn

from quatserve.training.nn.blocks import block_weight
from quatserve.training.nn.conv import HypercomplexConv2d

# A quintic that drives singular values within (0, 1] to about 1 (0.7 to 1.2) in five rounds: Jordan's.
QUINTIC = (3.4445, -4.7750, 2.0315)
ROUNDS = 5


def inverse_root(grams: Tensor) -> Tensor:
    """About G^(-1/2) of each G = x x^T, (..., n, n), so that G^(-1/2) x is orthogonal: U V^T of x = U S V^T.

    Each round multiplies x from the left by a polynomial of x x^T. All of these commute: the rounds need the
    small square matrices alone, never x.
    """
    a, b, c = QUINTIC
    scale = grams.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(1e-24)[..., None, None]
    root, grams = torch.eye(grams.shape[-1], device=grams.device) / scale.sqrt(), grams / scale
    for _ in range(ROUNDS):
        polynomial = b * grams + c * grams @ grams
        polynomial.diagonal(dim1=-2, dim2=-1).add_(a)
        root, grams = polynomial @ root, polynomial @ grams @ polynomial
    return root


class Muon(torch.optim.Optimizer):
    """Nesterov's momentum, then an orthogonal step, for the kernels of hypercomplex convolutions."""

    def __init__(self, convolutions: Iterable[HypercomplexConv2d], *, momentum: float):
        self._convolutions = list(convolutions)
        kernels = [convolution.weight for convolution in self._convolutions]
        super().__init__(kernels, {"lr": 0.0, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 - torch's name
        group = self.param_groups[0]
        ahead = {c: self._ahead(c.weight, group["momentum"]) for c in self._convolutions}
        by_height = groupby(sorted(ahead, key=_height), _height)
        for convolutions in (list(members) for _, members in by_height):
            roots = inverse_root(torch.stack([_gram(c, ahead[c]) for c in convolutions]))
            for convolution, root in zip(convolutions, roots, strict=True):
                kernel = convolution.weight
                kernel.mul_((len(kernel) / convolution.algebra.dimension) ** 0.5 / kernel.norm())
                # a kernel is the first block column of its matrix
                kernel.add_((root @ ahead[convolution].flatten(1)).reshape(kernel.shape), alpha=-group["lr"])

    def _ahead(self, kernel: nn.Parameter, momentum: float) -> Tensor:
        """The gradient with Nesterov's momentum."""
        state, gradient = self.state[kernel], kernel.grad
        if gradient is None:
            raise RuntimeError("a kernel has no gradient: call backward first")
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(kernel)
        average: Tensor = state["momentum_buffer"].mul_(momentum).add_(gradient)
        return gradient.add(average, alpha=momentum)


def _gram(convolution: HypercomplexConv2d, kernel: Tensor) -> Tensor:
    """L L^T of the block matrix L of `kernel`."""
    matrix = block_weight(convolution.algebra, kernel).flatten(1)
    return matrix @ matrix.T


def _height(convolution: HypercomplexConv2d) -> int:
    return len(convolution.weight)


def hypercomplex_convolutions(network: nn.Module) -> list[HypercomplexConv2d]:
    return [module for module in network.modules() if isinstance(module, HypercomplexConv2d)]

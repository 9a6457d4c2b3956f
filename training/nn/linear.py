"""The hypercomplex linear layer with the arguments of torch's own; features are real ones."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from quatserve.training.nn.algebra import Algebra
from quatserve.training.nn.init import Criterion
from quatserve.training.nn.layer import HypercomplexLayer


class HypercomplexLinear(HypercomplexLayer):
    """y = W x + b: a matrix of hypercomplex numbers, from the left, by a vector of them.

    (..., in_features) -> (..., out_features), features in d blocks of as many, real block first.
    `criterion` scales the first weights: "he" or "glorot".

    >>> layer = HypercomplexLinear(8, 16, algebra="quaternion")
    >>> layer(torch.randn(2, 8)).shape, layer.weight.shape
    (torch.Size([2, 16]), torch.Size([16, 2]))
    """

    # n features in and out: n / 2 products for each number
    form_gains_from: ClassVar = {"cpu": {"complex": 1024 / 2, "quaternion": 512 / 2}}

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        criterion: Criterion = "glorot",
        algebra: Algebra | str | None = None,
    ):
        super().__init__((in_features, out_features), (), 1, bias, device, dtype, criterion, algebra)
        self.in_features, self.out_features = in_features, out_features

    def real_operation(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:  # noqa: ARG002
        return F.linear(x, weight, bias)

    def real_products(self, values: list[Tensor], weights: list[Tensor]) -> Sequence[Tensor]:
        """One batch of matrix products."""
        rows = torch.stack([value.reshape(-1, value.shape[-1]) for value in values])
        products = torch.bmm(rows, torch.stack(weights).mT)
        return products.reshape(len(values), *values[0].shape[:-1], -1).unbind()

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self.algebra.name}, bias={self.bias is not None}"

"""Dropout of whole hypercomplex values."""

import torch
from torch import Tensor
from torch.nn import functional as F

from quatserve.training.nn.algebra import Algebra
from quatserve.training.nn.module import HypercomplexModule


class HypercomplexDropout(HypercomplexModule):
    """y = m x / (1 - p) in training, with one m for all components of a value: 0 with probability p, else 1.

    Components lie in d blocks along `dim`: 1 in feature maps, -1 behind linear layers.

    >>> dropped = HypercomplexDropout(0.5, algebra="complex")(torch.ones(1, 6))
    >>> torch.equal(dropped[:, :3], dropped[:, 3:])
    True
    """

    def __init__(self, p: float = 0.5, dim: int = 1, *, algebra: Algebra | str | None = None):
        super().__init__(algebra)
        if not 0 <= p <= 1:
            raise ValueError(f"p {p} is no probability: use a number from 0 to 1")
        self.p, self.dim = p, dim

    def forward(self, x: Tensor) -> Tensor:
        self.algebra.channels(x.shape[self.dim])
        first = x.chunk(self.algebra.dimension, self.dim)[0]
        factor = F.dropout(torch.ones_like(first), self.p, self.training)
        return x * torch.cat([factor] * self.algebra.dimension, self.dim)

    def extra_repr(self) -> str:
        return f"p={self.p}, dim={self.dim}, {self.algebra.name}"

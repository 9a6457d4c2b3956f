"""Channel orders: where a stored tensor keeps the channels of the value that it stands for.

A join of components or a repetition of channels would be a copy at run time. Instead the tensors are
concatenated plainly (or not repeated at all), and the value carries an order: its channel c is stored as
channel order[c]. An order passes through everything that treats all channels alike; a layer that mixes
channels absorbs it into the columns of its weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx


@dataclass(frozen=True, eq=False)
class Value:
    """A value of the old graph: the node of the new graph that stores it, and how."""

    node: fx.Node
    channels: int | None = None  # of the value, on axis 1; None if unknown
    order: Tensor | None = None  # None: stored as it is
    rank: int | None = None  # axes, batch included; None if unknown

    @property
    def permuted(self) -> bool:
        """Whether the value is stored in another order, each channel once."""
        return self.order is not None and is_permutation(self.order)


def is_permutation(order: Tensor) -> bool:
    return torch.equal(order.sort().values, torch.arange(len(order)))


def same_order(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return torch.equal(first, second)


def normalised(order: Tensor) -> Tensor | None:
    """None for the order that changes nothing."""
    return None if torch.equal(order, torch.arange(len(order))) else order


def joined(blocks: int, parts: Sequence[Tensor]) -> Tensor:
    """The order of the join, block by block, of parts that are stored one after the other.

    With one block that is the literal concatenation. Each part is given by its own order.
    """
    placed, start = [], 0
    for part in parts:
        placed.append((part + start).reshape(blocks, -1))
        start += len(part)
    return torch.cat(placed, 1).flatten()


def spread(order: Tensor, inner: int) -> Tensor:
    """The order of flattened values with `inner` positions per channel."""
    return (order[:, None] * inner + torch.arange(inner)).flatten()

"""The concatenation of hypercomplex feature maps, which keeps each component in one block."""

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from quatserve.training.nn.algebra import Algebra


def join_components(algebra: Algebra, *maps: Tensor) -> Tensor:
    """Concatenate the hypercomplex channels of (B, d C, ...) maps: [a_r b_r ... | a_i b_i ... | ...]."""
    return join_blocks(algebra.dimension, *maps)


def join_blocks(blocks: int, *maps: Tensor) -> Tensor:
    """Concatenate maps of `blocks` blocks each, block by block. torch.fx traces a call as one node."""
    if has_torch_function(maps):
        return handle_torch_function(join_blocks, maps, blocks, *maps)
    return torch.cat([part.unflatten(1, (blocks, -1)) for part in maps], 2).flatten(1, 2)

"""Writes the folded graph from a traced one, one node after the other.

A node without a rule, or whose rule does not apply, is copied. It then reads its inputs in natural order.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from quatserve.export.folding.alike import is_alike, is_pair, rewrite_alike, rewrite_pair
from quatserve.export.folding.builder import Builder
from quatserve.export.folding.layers import LAYERS
from quatserve.export.folding.maps import NORMS
from quatserve.export.folding.mixing import rewrite_layer, rewrite_norm
from quatserve.export.folding.moving import (
    rewrite_cat,
    rewrite_flatten,
    rewrite_join,
    rewrite_mean,
    rewrite_repeat,
)
from quatserve.export.folding.order import Value
from quatserve.training.nn.join import join_blocks

Rule = Callable[[Builder, fx.Node], Value | None]
BY_TARGET: dict[Any, Rule] = {
    join_blocks: rewrite_join,
    torch.cat: rewrite_cat,
    torch.concat: rewrite_cat,
    torch.concatenate: rewrite_cat,
    torch.flatten: rewrite_flatten,
    "flatten": rewrite_flatten,
    torch.mean: rewrite_mean,
    "mean": rewrite_mean,
    "repeat": rewrite_repeat,
}


def rewrite(traced: fx.GraphModule) -> fx.GraphModule:
    """The folded module of a functional graph in float64."""
    new = Builder(traced)
    for node in traced.graph.nodes:
        rule = _rule(node, new.layer(node))
        new.values[node] = (rule and rule(new, node)) or Value(new.copy(node))
    return new.finish()


def _rule(node: fx.Node, layer: nn.Module | None) -> Rule | None:
    if isinstance(layer, NORMS):
        return rewrite_norm
    if isinstance(layer, LAYERS):
        return rewrite_layer
    if isinstance(layer, nn.Flatten):
        return rewrite_flatten
    if is_alike(node, layer):
        return rewrite_alike
    if is_pair(node):
        return rewrite_pair
    return BY_TARGET.get(node.target) if node.op in ("call_function", "call_method") else None

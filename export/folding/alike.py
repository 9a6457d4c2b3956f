"""Rules for operations that treat every channel alike: a channel order passes through them unchanged."""

import dataclasses
import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from quatserve.export.folding.builder import Builder
from quatserve.export.folding.order import Value, same_order

LAYERS = (
    *(nn.CELU, nn.ELU, nn.GELU, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid),
    *(nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Tanh),
    *(nn.AdaptiveAvgPool2d, nn.AvgPool2d, nn.MaxPool2d, nn.Upsample),
)
FUNCTIONS: set[Any] = {
    *(F.celu, F.elu, F.gelu, F.hardsigmoid, F.hardswish, F.hardtanh, F.leaky_relu, F.logsigmoid, F.mish),
    *(F.relu, F.relu6, F.selu, F.sigmoid, F.silu, F.softplus, F.softsign, F.tanh),
    *(torch.relu, torch.sigmoid, torch.tanh, torch.abs, torch.exp, torch.square, torch.sqrt, torch.neg),
    *(torch.clamp, operator.neg, F.adaptive_avg_pool2d, F.avg_pool2d, F.max_pool2d),
    *("abs", "clamp", "clone", "exp", "neg", "relu", "sigmoid", "sqrt", "square", "tanh"),
}
PAIRS: set[Any] = {
    *(operator.add, operator.sub, operator.mul, operator.truediv),
    *(torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum),
    *("add", "sub", "mul", "div", "maximum", "minimum"),
}


def is_alike(node: fx.Node, layer: nn.Module | None) -> bool:
    """Whether it maps one tensor, every channel by itself and in the same way."""
    if len(node.all_input_nodes) != 1 or node.args[:1] != tuple(node.all_input_nodes):
        return False
    if getattr(layer, "return_indices", False) or node.kwargs.get("return_indices"):
        return False
    return isinstance(layer, LAYERS) or node.target in FUNCTIONS or node.target in PAIRS


def is_pair(node: fx.Node) -> bool:
    """Whether it maps two tensors, every channel by itself and in the same way."""
    return node.target in PAIRS and len(node.all_input_nodes) == 2 == len(node.args)


def rewrite_alike(new: Builder, node: fx.Node) -> Value:
    (before,) = node.all_input_nodes
    value = new.values[before]
    return dataclasses.replace(value, node=new.copy(node, {before: value.node}))


def rewrite_pair(new: Builder, node: fx.Node) -> Value | None:
    """Sums, products: both sides in one order."""
    a, b = node.all_input_nodes
    first, second = new.values[a], new.values[b]
    aligned = first.rank is not None and (first.channels, first.rank) == (second.channels, second.rank)
    if same_order(first.order, second.order) and (aligned or first.order is None):
        like = first if aligned else Value(first.node)
        return dataclasses.replace(like, node=new.copy(node, {a: first.node, b: second.node}))
    leader, other = (a, b) if first.permuted else (b, a)
    like = new.values[leader]
    stored = new.stored_like(other, like)
    if stored is None:
        return None
    return dataclasses.replace(like, node=new.copy(node, {leader: like.node, other: stored}))

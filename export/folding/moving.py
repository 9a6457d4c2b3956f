"""Rules for what moves channels: joins, concatenations, repetitions, and the way from maps to vectors."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from quatserve.export.folding.alike import is_alike
from quatserve.export.folding.builder import Builder
from quatserve.export.folding.layers import LAYERS, plain
from quatserve.export.folding.maps import NORMS
from quatserve.export.folding.order import Value, joined, normalised
from quatserve.training.nn.linear import HypercomplexLinear


def rewrite_join(new: Builder, node: fx.Node) -> Value:
    """Concatenate plainly and carry the order; if the channels cannot be counted, move them at run time."""
    arguments: tuple[Any, ...] = node.args
    blocks, *parts = arguments
    found = _concatenated(new, blocks, parts)
    if found is not None:
        return found
    split = [new.graph.call_method("unflatten", (new.natural(part), 1, (blocks, -1))) for part in parts]
    whole = new.graph.call_function(torch.cat, (split, 2))
    return Value(new.graph.call_method("flatten", (whole, 1, 2)))


def rewrite_cat(new: Builder, node: fx.Node) -> Value | None:
    """Concatenate what is stored, each part in its own order."""
    arguments = _named(node, "tensors", "dim")
    parts = arguments["tensors"]
    if arguments.get("dim", arguments.get("axis", 0)) != 1 or not isinstance(parts, list | tuple):
        return None
    return _concatenated(new, 1, parts)


def rewrite_repeat(new: Builder, node: fx.Node) -> Value | None:
    """Channels that repeat are read again instead of copied."""
    arguments: tuple[Any, ...] = node.args
    before, *times = arguments
    if len(times) < 2 or not all(isinstance(n, int) for n in times) or {times[0], *times[2:]} != {1}:
        return None
    value, count = new.values[before], times[1]
    channels = value.channels or _channels_expected(new, node) // count
    if not channels:
        return None
    order = torch.arange(channels) if value.order is None else value.order
    return Value(value.node, channels * count, order.repeat(count), len(times))


def rewrite_mean(new: Builder, node: fx.Node) -> Value | None:
    """The mean over all of space keeps the channels as they are."""
    arguments = _named(node, "input", "dim", "keepdim")
    (before,), axes = node.all_input_nodes, arguments.get("dim")
    value = new.values[before]
    if value.rank is None or not isinstance(axes, list | tuple):
        return None
    if sorted(axis % value.rank for axis in axes) != [*range(2, value.rank)]:
        return None
    rank = value.rank if arguments.get("keepdim") else 2
    return dataclasses.replace(value, node=new.copy(node, {before: value.node}), rank=rank)


def rewrite_flatten(new: Builder, node: fx.Node) -> Value | None:
    """Linear layers read vectors in any order of channels; other readers get the natural one."""
    layer, (before,) = new.layer(node), node.all_input_nodes
    arguments = _named(node, "input", "start_dim", "end_dim")
    if isinstance(layer, nn.Flatten):
        arguments = {"start_dim": layer.start_dim, "end_dim": layer.end_dim}
    if (arguments.get("start_dim", 0), arguments.get("end_dim", -1)) != (1, -1):
        return None
    value = new.values[before]
    if value.order is None or not _read_by_linear(new, node):
        return Value(new.copy(node), rank=2)
    return dataclasses.replace(value, node=new.copy(node, {before: value.node}), rank=2)


def _concatenated(new: Builder, blocks: Any, parts: Sequence[Any]) -> Value | None:
    """One concatenation of what is stored; None if the order of the result cannot be said."""
    values = [new.values[part] for part in parts]
    ranks = {value.rank for value in values}
    rank = ranks.pop() if len(ranks) == 1 else None
    stored = [
        value.node if value.permuted else new.natural(part) for part, value in zip(parts, values, strict=True)
    ]
    orders = [_order_of(value) for value in values]
    known = [order for order in orders if order is not None]
    if len(known) == len(parts):
        order = joined(blocks, known)
        return Value(_cat(new, stored), len(order), normalised(order), rank)
    if blocks == 1 and not any(value.order is not None for value in values):
        return Value(_cat(new, stored), rank=rank)
    return None


def _cat(new: Builder, stored: Sequence[fx.Node]) -> fx.Node:
    return new.graph.call_function(torch.cat, (list(stored), 1))


def _order_of(value: Value) -> Tensor | None:
    """The order in which a part enters a concatenation; None if its channels cannot be counted."""
    if value.permuted:
        return value.order
    return None if value.channels is None else torch.arange(value.channels)


def _channels_expected(new: Builder, node: fx.Node) -> int:
    """How many channels a layer that reads the node expects; 0 if none says so."""
    for user in node.users:
        layer = new.layer(user)
        if isinstance(layer, NORMS) and layer.running_mean is not None:
            return layer.running_mean.numel()
        if layer is not None and isinstance(layer, LAYERS):
            return int(getattr(plain(layer), "in_channels", 0))
    return 0


def _read_by_linear(new: Builder, node: fx.Node) -> bool:
    """Whether every reader, behind operations on single numbers, is a linear layer."""
    return all(
        isinstance(new.layer(user), nn.Linear | HypercomplexLinear)
        or (is_alike(user, new.layer(user)) and _read_by_linear(new, user))
        for user in node.users
    )


def _named(node: fx.Node, *names: str) -> dict[str, Any]:
    return dict(zip(names, node.args, strict=False)) | node.kwargs

"""The graph that a fold writes: its nodes, its layers, and what became of each node of the old graph."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from quatserve.export.folding.layers import Layer, is_ungrouped, write_stored
from quatserve.export.folding.order import Value
from quatserve.export.folding.trace import LEAVES, FoldError


class Builder:
    def __init__(self, traced: fx.GraphModule):
        self.graph = fx.Graph()
        self.values: dict[fx.Node, Value] = {}  # by node of the old graph
        self._traced = traced
        self._parts: dict[str, nn.Module | Tensor] = {}  # of the new graph, by path
        self._writers: dict[fx.Node, Layer] = {}  # by node of the new graph: the layer that computes it
        self._natural: dict[fx.Node, fx.Node] = {}  # by node of the new graph: the same in natural order

    def layer(self, node: fx.Node) -> nn.Module | None:
        """The module that a node of the old graph calls."""
        return self._traced.get_submodule(str(node.target)) if node.op == "call_module" else None

    def call(self, name: str, layer: Layer, stored: fx.Node) -> fx.Node:
        """Add a layer of the new graph, and its call."""
        new = self.graph.call_module(self._add(name, layer), (stored,))
        self._writers[new] = layer
        return new

    def copy(self, node: fx.Node, stored: Mapping[fx.Node, fx.Node] | None = None) -> fx.Node:
        """Copy a node of the old graph. It reads `stored`, and everything else in its natural order."""
        new = self.graph.node_copy(node, lambda n: (stored or {}).get(n) or self.natural(n))
        if (layer := self.layer(node)) is not None:
            if isinstance(layer, LEAVES):
                raise FoldError(f"{node.target}: call it with one tensor and nothing else")
            new.target = self._add(str(node.target), layer)
        if node.op == "get_attr":
            new.target = self._add(
                str(node.target).replace(".", "_"), _attribute(self._traced, str(node.target))
            )
        return new

    def natural(self, node: fx.Node) -> fx.Node:
        """The value of a node of the old graph with its channels in natural order."""
        value = self.values[node]
        if value.order is None:
            return value.node
        if node not in self._natural:
            self._natural[node] = self.select(value.node, value.order)
        return self._natural[node]

    def select(self, stored: fx.Node, channels: Tensor) -> fx.Node:
        """Select channels at run time."""
        index = self.graph.get_attr(self._add("order", channels))
        return self.graph.call_function(torch.index_select, (stored, 1, index))

    def sole_writer(self, node: fx.Node) -> Layer | None:
        """The layer that computes a node of the old graph for one reader alone, in natural order on axis 1.

        Such a layer may be changed together with its reader.
        """
        value = self.values[node]
        alone = len(node.users) == 1 and value.order is None and value.channels is not None
        return self._writers.get(value.node) if alone else None

    def stored_like(self, node: fx.Node, like: Value) -> fx.Node | None:
        """The value of a node in the channel order of another value of as many channels, or None.

        It costs nothing if a layer writes it for one reader alone.
        """
        value, order = self.values[node], like.order
        if order is None or not like.permuted or like.rank is None:
            return None
        if (value.channels, value.rank) != (len(order), like.rank):
            return None
        writer = self.sole_writer(node)
        if writer is not None and is_ungrouped(writer):
            write_stored(writer, order)
            return value.node
        now = torch.arange(len(order)) if value.order is None else value.order
        return self.select(value.node, now[order.argsort()])

    def finish(self) -> fx.GraphModule:
        self._share_equal_layers()
        used = {node.target for node in self.graph.nodes}
        parts = {name: part for name, part in self._parts.items() if name in used}
        return fx.GraphModule(parts, self.graph, "Folded").eval().requires_grad_(False)

    def _share_equal_layers(self) -> None:
        """A module that was called twice became two layers; equal ones are kept once."""
        kept: dict[str, list[str]] = {}
        for node in self.graph.find_nodes(op="call_module"):
            layer = self._parts[node.target]
            names = kept.setdefault(repr(layer), [])
            same = (name for name in names if _equal(self._parts[name], layer))
            if (name := next(same, None)) is None:
                names.append(node.target)
            else:
                node.target = name

    def _add(self, name: str, part: nn.Module | Tensor) -> str:
        """Register a part under its name, or the name and a number if that is taken."""
        path, number = name, 1
        while path in self._parts and self._parts[path] is not part:
            path, number = f"{name}_{number}", number + 1
        self._parts[path] = part
        return path


def _attribute(root: nn.Module, path: str) -> Tensor:
    owner, _, name = path.rpartition(".")
    tensor: Tensor = getattr(root.get_submodule(owner), name)
    return tensor


def _equal(first: Any, second: Any) -> bool:
    a, b = first.state_dict(), second.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)

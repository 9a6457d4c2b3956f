"""Removes from a traced graph what evaluation does not compute, and every change of a tensor in place.

Afterwards each node is a pure function of its inputs, so that nodes may be replaced one at a time.
"""

import copy
import inspect
import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from quatserve.export.folding.trace import FoldError

IDENTITIES = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout)
VIEWS = {  # results that may share memory with their input
    *("chunk", "contiguous", "detach", "expand", "flatten", "getitem", "movedim", "narrow"),
    *("permute", "reshape", "select", "split", "squeeze", "swapaxes", "tensor_split", "to", "transpose"),
    *("unbind", "unflatten", "unfold", "unsqueeze", "view"),
}
OUT_OF_PLACE = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}


def make_functional(traced: fx.GraphModule) -> None:
    """Erase dead nodes and identities, and replace in-place operations by their out-of-place forms."""
    for node in list(traced.graph.nodes):
        if _is_identity(node, traced):
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
    for node in list(traced.graph.nodes):
        if node.target is operator.setitem:
            raise FoldError(
                f"{layer_of(node)}: it writes into a part of a tensor; use torch.where or torch.cat"
            )
        if _make_out_of_place(node, traced):
            _redirect_later_uses(node, traced)
    traced.graph.eliminate_dead_code()  # only now: an in-place operation is not dead if its result is unused


def layer_of(node: fx.Node) -> str:
    """The path of the module whose forward made the node, or the node's own name at the top."""
    stack = node.meta.get("nn_module_stack") or {}
    return next((str(path) for path, _ in reversed(stack.values())), "") or node.name


def _is_identity(node: fx.Node, traced: fx.GraphModule) -> bool:
    if node.op == "call_module":
        return isinstance(traced.get_submodule(str(node.target)), IDENTITIES)
    if node.op != "call_function" or node.target not in DROPOUTS:
        return False
    if _arguments(node)["training"]:
        raise FoldError(f"{layer_of(node)}: its dropout is on in evaluation too; pass training=self.training")
    return True


def _arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments by name, defaults included, of a function written in Python."""
    bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]
    bound.apply_defaults()
    return bound.arguments


def _make_out_of_place(node: fx.Node, traced: fx.GraphModule) -> bool:
    """Give `node` its out-of-place form. Returns whether it worked in place."""
    if node.op == "call_module":
        layer = traced.get_submodule(str(node.target))
        if not getattr(layer, "inplace", False):
            return False
        node.target = f"{node.target}_{node.name}"
        pure: Any = copy.copy(layer)
        pure.inplace = False
        traced.add_submodule(node.target, pure)
        return True
    if node.op == "call_method":
        name = str(node.target)
        if not name.endswith("_") or name.endswith("__"):
            return False
        node.target = name.removesuffix("_")
        return True
    if node.target in OUT_OF_PLACE:
        node.target = OUT_OF_PLACE[node.target]
        return True
    return node.op == "call_function" and _make_function_out_of_place(node)


def _make_function_out_of_place(node: fx.Node) -> bool:
    name, home = getattr(node.target, "__name__", ""), getattr(node.target, "__module__", "")
    if home == F.__name__ and inspect.isfunction(node.target):
        arguments = _arguments(node)
        if not arguments.get("inplace"):
            return False
        changed = arguments.pop(next(iter(arguments)))
        node.args, node.kwargs = (changed,), arguments | {"inplace": False}
        return True
    if not name.endswith("_") or name.endswith("__"):
        return False
    pure = getattr(F, name[:-1], None) or getattr(torch, name[:-1])
    node.target = pure
    return True


def _redirect_later_uses(node: fx.Node, traced: fx.GraphModule) -> None:
    """Whoever read the changed tensor after the change reads the result instead."""
    changed = node.all_input_nodes[0]
    later, following = set(), node.next
    while following.op != "root":
        later.add(following)
        following = following.next
    _check_alone(node, changed, later, traced)
    changed.replace_all_uses_with(node, delete_user_cb=later.__contains__)


def _check_alone(node: fx.Node, changed: fx.Node, later: set[fx.Node], traced: fx.GraphModule) -> None:
    """Refuse to change a tensor if another that shares its memory is read later."""
    memory = changed
    while _is_view(memory, traced):
        memory = memory.all_input_nodes[0]
    if _read_through_views(memory, changed, later, traced):
        raise FoldError(
            f"{layer_of(node)}: it changes a tensor in place of which a view is read later; "
            "use the form that returns a new tensor"
        )


def _read_through_views(
    memory: fx.Node, changed: fx.Node, later: set[fx.Node], traced: fx.GraphModule
) -> bool:
    """Whether `memory`, or a view of it made before the change, is read later, unless as `changed`."""
    return any(
        (user in later and memory is not changed)
        or (
            user not in later and _is_view(user, traced) and _read_through_views(user, changed, later, traced)
        )
        for user in memory.users
    )


def _is_view(node: fx.Node, traced: fx.GraphModule) -> bool:
    if node.op == "call_module":
        return isinstance(traced.get_submodule(str(node.target)), nn.Flatten | nn.Unflatten)
    if node.target is getattr:
        return node.args[1] not in ("shape", "dtype", "device", "ndim")
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op in ("call_function", "call_method") and name in VIEWS

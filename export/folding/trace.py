"""Records a module as a torch.fx graph. Its leaves are torch's layers, our layers and joins of components."""

import operator
from typing import Any

from torch import fx, nn

from quatserve.training.errors import UserError
from quatserve.training.nn.layer import HypercomplexLayer
from quatserve.training.nn.norm import (
    HypercomplexBatchNorm1d,
    HypercomplexBatchNorm2d,
    HypercomplexBatchNorm3d,
)

Whitening = HypercomplexBatchNorm1d | HypercomplexBatchNorm2d | HypercomplexBatchNorm3d
WHITENING = (HypercomplexBatchNorm1d, HypercomplexBatchNorm2d, HypercomplexBatchNorm3d)
LEAVES = (HypercomplexLayer, *WHITENING)


class FoldError(UserError):
    """A module that cannot be folded. The message names the layer and the reason in one line."""


def trace(module: nn.Module) -> fx.GraphModule:
    """The graph of `module` in evaluation; FoldError if it is in training mode or cannot be traced."""
    _check_evaluation(module)
    tracer = _Tracer()
    try:
        graph = tracer.trace(module)
    except Exception as error:
        layer = tracer.failed or type(module).__name__
        raise FoldError(f"{layer}: {_reason(error)}") from error
    return fx.GraphModule(module, graph)


class _Proxy(fx.Proxy):
    """Records `x += y` as the change in place that it is; torch.fx would record `x = x + y`."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})

    def __isub__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.isub, (self, other), {})

    def __imul__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.imul, (self, other), {})

    def __itruediv__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.itruediv, (self, other), {})


class _Tracer(fx.Tracer):
    def __init__(self) -> None:
        super().__init__()
        self.failed = ""  # path of the innermost module whose forward could not be traced

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, LEAVES) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed = self.failed or self.path_of_module(m)
            raise


def _check_evaluation(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if part.training:
            raise FoldError(f"{name or type(part).__name__}: it is in training mode; call eval() first")


def _reason(error: Exception) -> str:
    if isinstance(error, fx.proxy.TraceError):
        return (
            f"its forward branches or loops on a tensor ({str(error).strip().splitlines()[0]}); "
            "write it so that every input takes the same way"
        )
    first = (str(error).strip().splitlines() or [""])[0]
    return f"torch.fx cannot trace its forward ({type(error).__name__}: {first})"

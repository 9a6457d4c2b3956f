"""Folds any module made of our layers and torch's own into plain torch layers, exactly.

`docs/fold.md` derives it. `trace` records the module as a graph, `functional` removes what evaluation does
not compute, `rewrite` writes the new graph: hypercomplex layers become real ones, normalisations disappear
into the layer before them, and joins become plain concatenations whose channel order is carried along.
"""

import copy

import torch
from torch import fx, nn

from quatserve.export.folding.functional import make_functional
from quatserve.export.folding.rewrite import rewrite
from quatserve.export.folding.trace import FoldError, trace

__all__ = ["FoldError", "fold"]


@torch.no_grad()
def fold(module: nn.Module) -> fx.GraphModule:
    """Return an equal module of plain torch layers, in float64. `module` itself is left as it is.

    The module must be in evaluation mode and traceable by torch.fx. Raises FoldError, which names the layer
    that cannot be folded and the reason.
    """
    traced = trace(copy.deepcopy(module).cpu().double())
    make_functional(traced)
    return rewrite(traced)

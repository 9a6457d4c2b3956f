"""Random statistics for any network, and the comparison of a fold with what was folded."""

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from quatserve.export import fold
from quatserve.training.nn.norm import HypercomplexBatchNorm2d

SIZE = (6, 6)


@torch.no_grad()
def randomise(module: nn.Module) -> nn.Module:
    """Evaluation mode, and running statistics as after training."""
    for part in module.modules():
        if isinstance(part, HypercomplexBatchNorm2d):
            part.running_mean.normal_(0, 0.3)
            part.beta.normal_(0, 0.3)
            if part.gamma is not None:
                part.gamma.add_(torch.randn_like(part.gamma), alpha=0.2)
            if part.scales:
                channels, d, _ = part.running_covariance.shape
                factor = torch.randn(channels, d, 4 * d)  # V = F F^T / d is far from singular
                part.running_covariance.copy_(factor @ factor.mT / d)
        elif isinstance(part, _BatchNorm) and part.running_mean is not None and part.running_var is not None:
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2)
    return module.eval()


@torch.no_grad()
def equal(module: nn.Module, image: Tensor | None = None) -> fx.GraphModule:
    """Fold, compare in float64 to 1e-10 of the largest output, and return the folded module."""
    folded = fold(module)
    image = torch.randn(2, 8, *SIZE, dtype=torch.float64) if image is None else image
    expected, found = module.double()(image.clone()), folded(image.clone())
    for one, other in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, expected)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10 * float(other.abs().max()))
    return folded

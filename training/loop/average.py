"""An exponential moving average of a network: its parameters and its running statistics."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


def moving_average(network: nn.Module, decay: float) -> AveragedModel:
    """Weights that trail those of `network`, for evaluation and shipping. A young average forgets faster."""

    @torch.no_grad()
    def trail(averages: Sequence[Tensor], values: Sequence[Tensor], count: Tensor | int) -> None:
        # torch calls this once per dtype. Integer buffers are indices: an average of them is meaningless.
        if averages[0].is_floating_point():
            torch._foreach_lerp_(list(averages), list(values), 1 - min(decay, int(count) / (int(count) + 10)))

    return AveragedModel(network, multi_avg_fn=trail, use_buffers=True).eval().requires_grad_(False)

"""An exponential moving average of a network: its parameters and its running statistics."""

import copy

import torch
from torch import Tensor, nn


class Average:
    """Weights that trail those of `network`; what is evaluated and shipped."""

    def __init__(self, network: nn.Module, decay: float):
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        self.decay = decay
        self._ours = _floats(self.network)
        self._theirs = _floats(network)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Follow the network after its step number `step`; young averages forget faster."""
        decay = min(self.decay, step / (step + 10))
        torch._foreach_lerp_(self._ours, self._theirs, 1 - decay)  # torch's own EMA does the same


def _floats(network: nn.Module) -> list[Tensor]:
    return [tensor for tensor in network.state_dict(keep_vars=True).values() if tensor.is_floating_point()]

"""Learning from a teacher's answers beside the labels (Hinton, Vinyals and Dean, 2015).

The teacher is a finished run, most often of a larger network. In each step it answers about the very batch
that the student sees, with the same shifts and flips: answers about the clean image would teach the student
to undo its own augmentation (Beyer et al., *A good teacher is patient and consistent*, 2022).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quatserve.training.loop import compilation

TEMPERATURE = 4.0  # of both answers; above 1 it gives weight to the classes that the teacher thinks unlikely


class OnlineTeacher:
    """A frozen network that returns logits, computed in bf16 where the device is faster in it."""

    def __init__(self, network: nn.Module, device: torch.device, *, compiled: bool):
        network = network.eval().requires_grad_(False).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._model = compilation.compiled(network) if compiled else network
        self._device = device
        self._bf16 = has_fast_bf16(device)

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> Tensor:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            return self._model(inputs).float()  # type: ignore[no-any-return]


def has_fast_bf16(device: torch.device) -> bool:
    """Whether the device multiplies in bf16. Devices that emulate it are faster in fp32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and bool(torch.cpu.get_capabilities().get("avx512_bf16"))


def divergences(logits: Tensor, answers: Tensor) -> Tensor:
    """(B,): the Kullback-Leibler divergence of the student's softened answer from the teacher's, in nats.

    It is multiplied by the square of the temperature, so that its gradients are as large as those of labels.
    """
    ours, theirs = ((x / TEMPERATURE).log_softmax(1) for x in (logits, answers))
    return TEMPERATURE**2 * F.kl_div(ours, theirs, reduction="none", log_target=True).sum(1)

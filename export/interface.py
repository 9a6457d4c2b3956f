"""What stands around the layers in every graph: normalised pixels before, probabilities or maps behind."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quatserve.service.artifact import Task

LEVELS = 255  # of a pixel, and of a map
Channels = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Interface:
    """The task, the size of the images, and the mean and deviation of pixels in [0, 1] that layers expect."""

    task: Task
    height: int
    width: int
    mean: Channels = (0.5, 0.5, 0.5)
    std: Channels = (0.5, 0.5, 0.5)


class Served(nn.Module):
    """uint8 (B, H, W, 3) -> probabilities (B, classes), or maps of round(255 p), (B, classes, H, W).

    A single map has a sigmoid, and several a softmax over them.
    Pixels are scaled and probabilities computed in `dtype`; the layers compute in their own.
    """

    scale: Tensor
    offset: Tensor

    def __init__(self, layers: nn.Module, interface: Interface, dtype: torch.dtype):
        super().__init__()
        self.layers, self.task, self.dtype = layers, interface.task, dtype
        self.inner = next((p.dtype for p in layers.parameters()), dtype)
        mean, std = (torch.tensor(c).double().reshape(3, 1, 1) for c in (interface.mean, interface.std))
        self.register_buffer("scale", (1 / (LEVELS * std)).to(dtype))
        self.register_buffer("offset", (-mean / std).to(dtype))

    def forward(self, images: Tensor) -> Tensor:
        return self.output(self.logits(images))

    def logits(self, images: Tensor) -> Tensor:
        pixels = images.permute(0, 3, 1, 2).to(self.dtype)  # transposed while a pixel is one byte
        logits: Tensor = self.layers((pixels * self.scale + self.offset).to(self.inner))
        return logits.to(self.dtype)

    def output(self, logits: Tensor) -> Tensor:
        if self.task is Task.CLASSIFICATION:
            return logits.softmax(1)
        p = logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(1)
        return (p * LEVELS).round().to(torch.uint8)

"""Wraps a network as the function that is served: uint8 images in, probabilities or maps out.

`export` hands its ONNX sessions to the same evaluation by wrapping them in the same type.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quatserve.training.data.augment import normalise
from quatserve.training.loop import compilation
from quatserve.training.networks.build import AnyNetwork

Images = NDArray[np.uint8]  # (B, H, W, 3), RGB
Predictor = Callable[[Images], NDArray[Any]]
"""Images -> float32 (B, classes) probabilities, or uint8 maps, round(255 p)."""


def predictor(network: AnyNetwork, device: torch.device, *, compiled: bool = False) -> Predictor:
    """The network in evaluation mode on `device`, with normalisation and the last step built in."""
    model: nn.Module = network.eval().to(device)
    if compiled:
        model = compilation.compiled(model)
    maps = network.config.task == "segmentation"

    @torch.inference_mode()
    def predict(images: Images) -> NDArray[Any]:
        logits = model(normalise(torch.from_numpy(images).permute(0, 3, 1, 2).to(device)))
        output = _maps(logits) if maps else logits.softmax(1)
        array: NDArray[Any] = output.cpu().numpy()
        return array

    return predict


def _maps(logits: Tensor) -> Tensor:
    """round(255 p): (B, H, W) by a sigmoid for one foreground class, else (B, maps, H, W) by a softmax."""
    p = logits[:, 0].sigmoid() if logits.shape[1] == 1 else logits.softmax(1)
    return (255 * p).round().to(torch.uint8)

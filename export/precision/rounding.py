"""Weights on INT8's grid, rounded with their neighbours in mind: GPTQ (Frantar et al., 2023).

Rounded to the nearest step each, the weights of a kernel make errors that correlated inputs add up. Here they
are rounded one after the other, and those still to come take back each error as far as they can: the
layer's output stays as near as possible to what it was, on real images.
"""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quatserve.export.folded import FoldedNetwork
from quatserve.training.data.augment import normalise
from quatserve.training.loop.prediction import Images

LARGEST = 64  # steps: the seven bits of `quantise`
PIXELS = 32_768  # at a time
PATCHES = 65_536  # that each layer is looked at on
DAMPING = 0.01  # of the mean square input


@torch.no_grad()
def rounded(network: FoldedNetwork, images: Images) -> FoldedNetwork:
    """A copy of which every kernel in the blocks is whole steps, a step per output channel."""
    seen = _moments(network, images)
    copied = copy.deepcopy(network)
    for name, layer in _kernels(copied):
        layer.weight.copy_(round_rows(layer.weight.flatten(1), seen[name].mean()).reshape(layer.weight.shape))
    return copied


def round_rows(weight: Tensor, moments: Tensor) -> Tensor:
    """(rows, columns) in whole steps a row, for inputs whose second moments are (columns, columns)."""
    identity = torch.eye(len(moments), dtype=weight.dtype)
    damping = (DAMPING * moments.diagonal().mean()).clamp_min(1e-12)  # inputs may all be nothing
    moments = moments.to(weight.dtype) + damping * identity
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moments))
    blame = torch.linalg.cholesky(inverse, upper=True)  # row i: who pays for column i, of those behind it
    step = (weight.abs().amax(1) / LARGEST).clamp_min(torch.finfo(weight.dtype).tiny)
    largest = weight.abs().argmax(1)  # decides the step, and so stays what it is
    rest, result = weight.clone(), torch.empty_like(weight)
    for i in range(weight.shape[1]):
        steps = (rest[:, i] / step).round().clamp(-LARGEST, LARGEST)
        result[:, i] = torch.where(largest == i, weight[:, i], steps * step)
        error = (rest[:, i] - result[:, i]) / blame[i, i]
        rest[:, i:] -= error[:, None] * blame[i, i:]
    return result


class _Moments:
    """Second moments of what a convolution sees: a hook that is called before it."""

    def __init__(self, images: int):
        self.images, self.total, self.count = images, torch.zeros(()), 0

    def __call__(self, layer: nn.Conv2d, inputs: tuple[Tensor]) -> None:
        geometry = {"dilation": layer.dilation, "padding": layer.padding, "stride": layer.stride}
        patches = F.unfold(inputs[0], layer.kernel_size, **geometry)  # type: ignore[arg-type]
        every = patches.shape[2] * self.images // PATCHES | 1  # odd: not the same columns of each row
        rows = patches[:, :, ::every].transpose(1, 2).flatten(0, 1)
        self.total = self.total + rows.T @ rows
        self.count += len(rows)

    def mean(self) -> Tensor:
        return self.total / self.count


def _moments(network: FoldedNetwork, images: Images) -> dict[str, _Moments]:
    single = copy.deepcopy(network).float()
    found = {name: _Moments(len(images)) for name, _ in _kernels(single)}
    for name, layer in _kernels(single):
        layer.register_forward_pre_hook(found[name])
    _, height, width, _ = images.shape
    for part in torch.from_numpy(images).split(max(1, PIXELS // (height * width))):
        single(normalise(part.permute(0, 3, 1, 2)))
    return found


def _kernels(network: FoldedNetwork) -> Iterator[tuple[str, nn.Conv2d]]:
    """Those that INT8 has; one channel at a time there is nobody to take anything back."""
    for name, layer in network.blocks.named_modules():
        if isinstance(layer, nn.Conv2d) and layer.groups == 1:
            yield name, layer

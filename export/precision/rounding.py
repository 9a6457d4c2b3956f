"""Rounds weights to INT8's grid by GPTQ (Frantar et al., 2023).

If every weight is rounded to its nearest step, correlated inputs add up the errors. GPTQ rounds the columns
of a kernel one after the other and corrects the remaining columns for each error. This keeps the layer's
output on real images as close as possible to the original.
"""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quatserve.export.folded import FoldedNetwork
from quatserve.training.data.augment import normalise
from quatserve.training.loop.prediction import Images

LARGEST = 64  # steps: `quantise` uses seven bits
PIXELS = 32_768  # per batch
PATCHES = 65_536  # per layer, to estimate its second moments
DAMPING = 0.01  # times the mean square input


@torch.no_grad()
def rounded(network: FoldedNetwork, images: Images) -> FoldedNetwork:
    """Return a copy with every kernel in the blocks on the grid, one step size per output channel."""
    seen = _moments(network, images)
    copied = copy.deepcopy(network)
    for name, layer in _kernels(copied):
        layer.weight.copy_(round_rows(layer.weight.flatten(1), seen[name].mean()).reshape(layer.weight.shape))
    return copied


def round_rows(weight: Tensor, moments: Tensor) -> Tensor:
    """Round `weight` (rows, columns) to multiples of one step per row; `moments` is (columns, columns)."""
    identity = torch.eye(len(moments), dtype=weight.dtype)
    damping = (DAMPING * moments.diagonal().mean()).clamp_min(1e-12)  # inputs may all be zero
    moments = moments.to(weight.dtype) + damping * identity
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moments))
    factor = torch.linalg.cholesky(inverse, upper=True)  # row i: how columns i.. correct an error in column i
    step = (weight.abs().amax(1) / LARGEST).clamp_min(torch.finfo(weight.dtype).tiny)
    largest = weight.abs().argmax(1)  # sets the step, so it stays exact
    rest, result = weight.clone(), torch.empty_like(weight)
    for i in range(weight.shape[1]):
        steps = (rest[:, i] / step).round().clamp(-LARGEST, LARGEST)
        result[:, i] = torch.where(largest == i, weight[:, i], steps * step)
        error = (rest[:, i] - result[:, i]) / factor[i, i]
        rest[:, i:] -= error[:, None] * factor[i, i:]
    return result


class _Moments:
    """A forward pre-hook that accumulates the second moments of a convolution's input patches."""

    def __init__(self, images: int):
        self.images, self.total, self.count = images, torch.zeros(()), 0

    def __call__(self, layer: nn.Conv2d, inputs: tuple[Tensor]) -> None:
        geometry = {"dilation": layer.dilation, "padding": layer.padding, "stride": layer.stride}
        patches = F.unfold(inputs[0], layer.kernel_size, **geometry)  # type: ignore[arg-type]
        every = patches.shape[2] * self.images // PATCHES | 1  # odd, so that sampled columns differ by row
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
    """Kernels that INT8 quantises. Grouped ones are left out: GPTQ has no other columns to correct."""
    for name, layer in network.blocks.named_modules():
        if isinstance(layer, nn.Conv2d) and layer.groups == 1:
            yield name, layer

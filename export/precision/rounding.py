"""Rounds weights to INT8's grid by GPTQ (Frantar et al., 2023).

If every weight is rounded to its nearest step, correlated inputs add up the errors. GPTQ rounds the columns
of a kernel one after the other and corrects the remaining columns for each error. This keeps the layer's
output on real images as close as possible to the original.
"""

import copy
from collections.abc import Collection, Iterator

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from quatserve.export.interface import Interface, Served
from quatserve.training.loop.prediction import Images

LARGEST = 64  # steps: `quantise` uses seven bits
PIXELS = 32_768  # per batch
PATCHES = 65_536  # per layer, to estimate its second moments
DAMPING = 0.01  # times the mean square input


@torch.no_grad()
def rounded_weights(
    folded: fx.GraphModule, layers: Collection[str], interface: Interface, images: Images
) -> dict[str, Tensor]:
    """The kernels of the named layers on the grid, one step size per output channel, by their names."""
    seen = _moments(folded, layers, interface, images)
    return {
        f"{name}.weight": round_rows(layer.weight.flatten(1), seen[name].mean()).reshape(layer.weight.shape)
        for name, layer in _kernels(folded, layers)
    }


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


def _moments(
    folded: fx.GraphModule, layers: Collection[str], interface: Interface, images: Images
) -> dict[str, _Moments]:
    single = Served(copy.deepcopy(folded).float(), interface, torch.float32)
    found = {name: _Moments(len(images)) for name, _ in _kernels(single.layers, layers)}
    for name, layer in _kernels(single.layers, layers):
        layer.register_forward_pre_hook(found[name])
    _, height, width, _ = images.shape
    for part in torch.from_numpy(images).split(max(1, PIXELS // (height * width))):
        single.logits(part)
    return found


def _kernels(module: nn.Module, layers: Collection[str]) -> Iterator[tuple[str, nn.Conv2d]]:
    """The named convolutions. Padding by anything but zeros is left to the nearest step."""
    for name in layers:
        layer = module.get_submodule(name)
        if (
            isinstance(layer, nn.Conv2d)
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
        ):
            yield name, layer

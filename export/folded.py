"""A network with its normalisations folded away: convolutions, sums, concatenations and ReLUs, in float64.

A residual stream is carried in one channel order, such that a projection block concatenates plainly:
x_stream = x[order]. Whoever reads the stream has its columns permuted, whoever writes to it its rows.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quatserve.export.folding import (
    absorb,
    absorb_into_reader,
    is_diagonal,
    joined_order,
    normalisation_map,
)
from quatserve.training.errors import UserError
from quatserve.training.networks.residual import (
    RGB,
    Block,
    Components,
    Network,
    NetworkConfig,
    ProjectionBlock,
)
from quatserve.training.nn.blocks import block_weight
from quatserve.training.nn.conv import HypercomplexConv2d
from quatserve.training.nn.norm import HypercomplexBatchNorm2d
from quatserve.training.nn.whitening import NotPositiveDefiniteError


class FoldedComponents(nn.Module):
    """RGB -> [image, learned components]; `expand`, 3 -> 3 (d - 1), is what normalises the image first."""

    def __init__(self, expand: nn.Conv2d, conv1: nn.Conv2d, conv2: nn.Conv2d):
        super().__init__()
        self.expand, self.conv1, self.conv2 = expand, conv1, conv2

    def forward(self, image: Tensor) -> Tensor:
        x = F.relu(self.conv1(F.relu(self.expand(image))))
        return torch.cat([image, self.conv2(x)], 1)


class FoldedBlock(nn.Module):
    """x + F(x), or [P x, F(x)] with a shortcut P; `opening` is the normalisation before the first ReLU."""

    def __init__(
        self, opening: nn.Conv2d, conv1: nn.Conv2d, conv2: nn.Conv2d, shortcut: nn.Conv2d | None = None
    ):
        super().__init__()
        self.opening, self.conv1, self.conv2, self.shortcut = opening, conv1, conv2, shortcut

    def forward(self, x: Tensor) -> Tensor:
        residual = self.conv2(F.relu(self.conv1(F.relu(self.opening(x)))))
        return x + residual if self.shortcut is None else torch.cat([self.shortcut(x), residual], 1)


class FoldedNetwork(nn.Module):
    """(B, 3, H, W) normalised RGB -> logits, as the network it was folded from."""

    def __init__(
        self,
        config: NetworkConfig,
        components: FoldedComponents | None,
        stem: nn.Conv2d,
        blocks: list[FoldedBlock],
        head: nn.Conv2d,
    ):
        super().__init__()
        self.config, self.components, self.stem, self.head = config, components, stem, head
        self.blocks = nn.ModuleList(blocks)

    def forward(self, image: Tensor) -> Tensor:
        x = F.relu(self.stem(image if self.components is None else self.components(image)))
        for block in self.blocks:
            x = block(x)
        if self.config.task == "segmentation":
            return self.head(x)  # type: ignore[no-any-return]
        return self.head(x.mean((2, 3), keepdim=True)).flatten(1)  # type: ignore[no-any-return]


@torch.no_grad()
def fold(network: Network) -> FoldedNetwork:
    """A folded copy in float64; the network itself is left as it is."""
    if network.training:
        raise ValueError("a network in training mode has no fixed statistics to fold: call eval() first")
    components, stem = _opening_layers(network)
    blocks, order = [], torch.arange(network.config.width)
    for i, block in enumerate(network.blocks):
        assert isinstance(block, Block)
        folded, order = _block(block, order, f"blocks.{i}")
        blocks.append(folded)
    folded_network = FoldedNetwork(network.config, components, stem, blocks, _head(network, order))
    return folded_network.eval().requires_grad_(False)


def _opening_layers(network: Network) -> tuple[FoldedComponents | None, nn.Conv2d]:
    matrix, offset = _map(network.norm, "norm")
    weight = absorb(_real_weight(network.stem), matrix)
    if isinstance(network.components, Components):
        return _components(network.components), _convolution(weight, offset)
    grey = torch.cat([network.components.weights.double().reshape(1, RGB), torch.eye(RGB).double()])
    return None, _convolution(absorb_into_reader(weight, grey), offset)


def _components(components: Components) -> FoldedComponents:
    groups = components.blocks
    scale, shift = _map(components.norm1, "components.norm1")
    expand = scale @ torch.eye(RGB).double().repeat(groups, 1)
    matrix, offset = _map(components.norm2, "components.norm2")  # diagonal: these layers are real
    weight = matrix.diagonal().reshape(-1, 1, 1, 1) * components.conv1.weight.double()
    return FoldedComponents(
        _convolution(expand[..., None, None], shift),
        _convolution(weight, offset, groups=groups),
        _convolution(components.conv2.weight.double(), None, groups=groups),
    )


def _block(block: Block, order: Tensor, name: str) -> tuple[FoldedBlock, Tensor]:
    """The folded block, and the channel order of the stream behind it."""
    matrix, offset = _map(block.norm1, f"{name}.norm1")
    opening = _pointwise(matrix[order][:, order], offset[order])
    inner, bias = _map(block.norm2, f"{name}.norm2")
    geometry = {"stride": block.conv1.stride[0], "dilation": block.conv1.dilation[0]}
    conv1 = _convolution(absorb(_real_weight(block.conv1), inner)[:, order], bias, **geometry)
    last, dilation = _real_weight(block.conv2), block.conv2.dilation[0]
    if not isinstance(block, ProjectionBlock):
        return FoldedBlock(opening, conv1, _convolution(last[order], None, dilation=dilation)), order
    conv2 = _convolution(last, None, dilation=dilation)
    shortcut = _convolution(_real_weight(block.shortcut)[:, order], None, stride=block.shortcut.stride[0])
    return FoldedBlock(opening, conv1, conv2, shortcut), joined_order(block.algebra.dimension, len(last))


def _head(network: Network, order: Tensor) -> nn.Conv2d:
    """The 1x1 convolution of a segmentation network; a classifier's dense layer is one on a single pixel."""
    layer = network.head[-1]
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    assert layer.bias is not None
    weight = layer.weight.double().reshape(len(layer.weight), -1)[:, order]
    return _convolution(weight[..., None, None], layer.bias.double())


def _map(norm: HypercomplexBatchNorm2d, name: str) -> tuple[Tensor, Tensor]:
    covariance = norm.running_covariance.double() if norm.scales else None
    gamma = None if norm.gamma is None else norm.gamma.double()
    try:
        return normalisation_map(norm.running_mean.double(), covariance, gamma, norm.beta.double(), norm.eps)
    except NotPositiveDefiniteError as error:
        raise UserError(f"{name}: {error}: the run is damaged, train it again") from error


def _real_weight(layer: HypercomplexConv2d) -> Tensor:
    return block_weight(layer.algebra, layer.weight.double())


def _pointwise(matrix: Tensor, offset: Tensor) -> nn.Conv2d:
    """A 1x1 convolution; one channel at a time where channels do not mix (real networks, no whitening)."""
    if is_diagonal(matrix):
        return _convolution(matrix.diagonal().reshape(-1, 1, 1, 1), offset, groups=len(matrix))
    return _convolution(matrix[..., None, None], offset)


def _convolution(
    weight: Tensor, bias: Tensor | None, *, stride: int = 1, dilation: int = 1, groups: int = 1
) -> nn.Conv2d:
    outputs, inputs, size, _ = weight.shape
    layer = nn.Conv2d(
        inputs * groups, outputs, size, stride, dilation * (size // 2), dilation, groups, bias is not None
    ).double()
    layer.weight = nn.Parameter(weight.contiguous())
    if bias is not None:
        layer.bias = nn.Parameter(bias.contiguous())
    return layer

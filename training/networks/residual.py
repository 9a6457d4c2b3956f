"""The paper's residual networks for any algebra: d = 1 real, 2 complex, 4 quaternion, 8 octonion.

    input -> components -> HConv3x3 - HBN - ReLU -> blocks -> head

A feature map of width w has w real channels: w / d hypercomplex ones, in d blocks, real block first.
The first stage has n regular blocks at width w; then twice a projection block, which doubles the width,
with n - 1 regular blocks behind it. n is 2 in the shallow networks and 10 in the deep ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quatserve.training.nn.algebra import REAL, Algebra, find_algebra
from quatserve.training.nn.conv import HypercomplexConv2d
from quatserve.training.nn.join import join_components
from quatserve.training.nn.norm import HypercomplexBatchNorm2d

Task = Literal["classification", "segmentation"]
Encoding = Literal["learned", "grey"]
GREY_WEIGHTS = (0.299, 0.587, 0.114)  # ITU-R BT.601 luma
RGB = 3


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Everything that decides the shape of a network; it travels with every checkpoint."""

    algebra: str = "quaternion"
    task: Task = "classification"
    depth: int = 2  # n: regular blocks of the first stage
    width: int = 32  # real channels of the first stage
    classes: int = 10  # of a classifier; a segmentation network has one map
    encoding: Encoding = "learned"
    whiten: bool = True
    dilations: tuple[int, ...] = ()  # one a block, in order; () is 1 throughout

    def __post_init__(self) -> None:
        algebra = find_algebra(self.algebra)
        if self.encoding == "grey" and self.algebra != "quaternion":
            raise ValueError(f"grey + RGB has four components: it needs quaternions, not {self.algebra}")
        if self.depth < 1:
            raise ValueError(f"depth {self.depth} is too small: use 1 or more")
        algebra.channels(self.width)
        blocks = 3 * self.depth
        if self.dilations and len(self.dilations) != blocks:
            raise ValueError(f"{len(self.dilations)} dilations for {blocks} blocks: give one a block")
        if min(self.dilations, default=1) < 1:
            raise ValueError(f"dilation {min(self.dilations)} is too small: use 1 or more")
        if self.classes < 1:
            raise ValueError(f"{self.classes} classes are too few: use 1 or more")

    @property
    def body(self) -> tuple[object, ...]:
        """What decides the weights of everything but the head; dilations decide none."""
        return self.algebra, self.depth, self.width, self.encoding, self.whiten

    @property
    def head(self) -> tuple[object, ...]:
        """What decides the weights of the head, besides the width."""
        return (self.task, self.classes) if self.task == "classification" else (self.task,)


class Components(nn.Module):
    """RGB -> d blocks of 3: the image itself, then d - 1 learned blocks (one, for real networks).

    Each is BN-ReLU-Conv3x3-BN-ReLU-Conv3x3 in plain real layers, 3 -> 3 channels, no bias. They run side by
    side as one path of 3 (d - 1) channels in groups.
    """

    def __init__(self, algebra: Algebra, *, whiten: bool):
        super().__init__()
        self.blocks = max(1, algebra.dimension - 1)
        channels = RGB * self.blocks
        self.norm1 = HypercomplexBatchNorm2d(channels, whiten=whiten, algebra=REAL)
        self.conv1 = _grouped_convolution(channels, self.blocks)
        self.norm2 = HypercomplexBatchNorm2d(channels, whiten=whiten, algebra=REAL)
        self.conv2 = _grouped_convolution(channels, self.blocks)
        self.out_channels = RGB + channels

    def forward(self, image: Tensor) -> Tensor:
        x = image.repeat(1, self.blocks, 1, 1)
        x = self.conv1(F.relu(self.norm1(x)))
        x = self.conv2(F.relu(self.norm2(x)))
        return torch.cat([image, x], 1)


class GreyComponents(nn.Module):
    """RGB -> one quaternion a pixel: grey as the real part, red, green and blue as i, j, k."""

    weights: Tensor
    out_channels = 1 + RGB

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.tensor(GREY_WEIGHTS).reshape(1, RGB, 1, 1), persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        return torch.cat([(image * self.weights).sum(1, keepdim=True), image], 1)


class Block(nn.Module):
    """x + F(x), with F = BN-ReLU-Conv3x3-BN-ReLU-Conv3x3."""

    def __init__(
        self, algebra: Algebra, width: int, *, stride: int = 1, dilation: int = 1, whiten: bool = True
    ):
        super().__init__()
        self.algebra = algebra
        self.norm1 = HypercomplexBatchNorm2d(width, whiten=whiten, algebra=algebra)
        self.conv1 = _convolution(algebra, width, width, stride=stride, dilation=dilation)
        self.norm2 = HypercomplexBatchNorm2d(width, whiten=whiten, algebra=algebra)
        self.conv2 = _convolution(algebra, width, width, dilation=dilation)

    def residual(self, x: Tensor) -> Tensor:
        x = self.conv1(F.relu(self.norm1(x)))
        return self.conv2(F.relu(self.norm2(x)))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return x + self.residual(x)


class ProjectionBlock(Block):
    """[P x, F(x)] within each component: doubles the width, P a 1x1 convolution of the raw input."""

    def __init__(
        self, algebra: Algebra, width: int, *, stride: int = 1, dilation: int = 1, whiten: bool = True
    ):
        super().__init__(algebra, width, stride=stride, dilation=dilation, whiten=whiten)
        self.shortcut = _convolution(algebra, width, width, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        return join_components(self.algebra, self.shortcut(x), self.residual(x))


class Network(nn.Module):
    """(B, 3, H, W) normalised RGB -> (B, classes) logits, or (B, 1, H, W) road logits."""

    def __init__(self, config: NetworkConfig):
        super().__init__()
        self.config = config
        algebra = find_algebra(config.algebra)
        self.components = (
            GreyComponents() if config.encoding == "grey" else Components(algebra, whiten=config.whiten)
        )
        self.stem = _convolution(algebra, self.components.out_channels, config.width)
        self.norm = HypercomplexBatchNorm2d(config.width, whiten=config.whiten, algebra=algebra)
        self.blocks = nn.ModuleList(_blocks(config, algebra))
        self.head = _head(config, 4 * config.width)

    def forward(self, image: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(self.components(image))))
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def _convolution(
    algebra: Algebra, inputs: int, outputs: int, kernel: int = 3, *, stride: int = 1, dilation: int = 1
) -> HypercomplexConv2d:
    """Padded so that a stride of 1 keeps the size; without a bias."""
    padding = dilation * (kernel // 2)
    return HypercomplexConv2d(inputs, outputs, kernel, stride, padding, dilation, bias=False, algebra=algebra)


def _grouped_convolution(channels: int, groups: int) -> nn.Conv2d:
    convolution = nn.Conv2d(channels, channels, 3, padding=1, groups=groups, bias=False)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    return convolution


def _blocks(config: NetworkConfig, algebra: Algebra) -> Iterator[Block]:
    stride = 2 if config.task == "classification" else 1
    dilations = iter(config.dilations or [1] * 3 * config.depth)
    for stage in range(3):
        width = config.width * 2**stage
        if stage:
            yield ProjectionBlock(
                algebra, width // 2, stride=stride, dilation=next(dilations), whiten=config.whiten
            )
        for _ in range(config.depth - (stage > 0)):
            yield Block(algebra, width, dilation=next(dilations), whiten=config.whiten)


def _head(config: NetworkConfig, width: int) -> nn.Sequential:
    if config.task == "segmentation":
        return nn.Sequential(nn.Conv2d(width, 1, 1))
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, config.classes))

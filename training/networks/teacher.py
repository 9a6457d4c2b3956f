"""A plain real network that teaches the paper's: wide, shallow, cheap to ask and quick to train.

    image -> Conv3x3 -> three stages -> maximum over space -> linear
    stage:  Conv3x3 - MaxPool2 - BN - GELU, then  x + BN(Conv3x3(GELU(BN(Conv3x3 x))))  - GELU

After the networks of airbench (Jordan, *94% on CIFAR-10 in 3.29 seconds*, 2024). Its layers are ours for
d = 1, so that its kernels take orthogonal steps too.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from quatserve.training.networks.residual import RGB
from quatserve.training.nn.algebra import REAL
from quatserve.training.nn.conv import HypercomplexConv2d
from quatserve.training.nn.norm import HypercomplexBatchNorm2d

LOGIT_SCALE = 1 / 9  # of the head: the features are maxima, and large


@dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """Everything that decides the shape of a teacher."""

    kind: Literal["teacher"] = "teacher"  # tells it from a `NetworkConfig` in a run's config.json
    classes: int = 10
    stem: int = 32
    widths: tuple[int, int, int] = (64, 192, 208)  # two million parameters: 4 MB in fp16

    task: Literal["classification"] = "classification"
    algebra: Literal["real"] = "real"

    def __post_init__(self) -> None:
        if min(self.classes, self.stem, *self.widths) < 1:
            raise ValueError(f"classes, stem and widths must be positive, not {self}")

    @property
    def body(self) -> tuple[object, ...]:
        """What decides the weights of everything but the head."""
        return self.kind, self.stem, self.widths

    @property
    def head(self) -> tuple[object, ...]:
        """What decides what the answers mean."""
        return self.task, self.classes


def _convolution(channels: int, width: int) -> HypercomplexConv2d:
    return HypercomplexConv2d(channels, width, 3, padding=1, bias=False, algebra=REAL)


class Stage(nn.Module):
    def __init__(self, channels: int, width: int):
        super().__init__()
        self.conv1 = _convolution(channels, width)
        self.norm1 = HypercomplexBatchNorm2d(width, algebra=REAL)
        self.conv2 = _convolution(width, width)
        self.norm2 = HypercomplexBatchNorm2d(width, algebra=REAL)
        self.conv3 = _convolution(width, width)
        self.norm3 = HypercomplexBatchNorm2d(width, algebra=REAL)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        y = F.gelu(self.norm2(self.conv2(x)))
        return F.gelu(x + self.norm3(self.conv3(y)))


class Teacher(nn.Module):
    """(B, 3, H, W) normalised RGB -> (B, classes) logits."""

    def __init__(self, config: TeacherConfig):
        super().__init__()
        self.config = config
        self.stem = _convolution(RGB, config.stem)
        channels = (config.stem, *config.widths)
        self.stages = nn.Sequential(*map(Stage, channels, config.widths))
        self.head = nn.Linear(config.widths[-1], config.classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stages(F.gelu(self.stem(image)))
        # amax would do, but compiled in bf16 its gradient compares rounded numbers with exact ones
        return self.head(F.adaptive_max_pool2d(x, 1).flatten(1)) * LOGIT_SCALE  # type: ignore[no-any-return]

"""What cannot be folded is named in one line: the layer, and why."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quatserve.export.folding import FoldError, fold
from quatserve.nn import QUATERNION, HypercomplexBatchNorm2d, HypercomplexConv2d


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Looping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([row * 2 for row in x])


class WritingParts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x[:, 0] = 0
        return x


class AlwaysDropping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.1)


class ChangingViews(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        half = x[:, :4]
        x.relu_()
        return torch.cat([x, half], 1)


class Numpy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy())


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Branching(), "body.2: its forward branches or loops on a tensor"),
        (Looping(), "body.2: its forward branches or loops on a tensor"),
        (WritingParts(), "body.2: torch.fx cannot trace its forward (TypeError: "),
        (AlwaysDropping(), "body.2: its dropout is on in evaluation too; pass training=self.training"),
        (ChangingViews(), "body.2: it changes a tensor in place of which a view is read later"),
        (Numpy(), "body.2: torch.fx cannot trace its forward"),
        (
            nn.BatchNorm2d(8, track_running_stats=False),
            "body.2: it normalises by the statistics of each batch",
        ),
        (
            HypercomplexBatchNorm2d(8, algebra=QUATERNION).train(),
            "body.2: it is in training mode; call eval() first",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_the_layer_is_named_with_the_reason(layer: nn.Module, reason: str) -> None:
    before = HypercomplexConv2d(8, 8, 3, padding=1, bias=False, algebra=QUATERNION)
    network = nn.Sequential()
    network.add_module("body", nn.Sequential(before, nn.ReLU(), layer))
    training = layer.training and isinstance(layer, HypercomplexBatchNorm2d)
    network.eval()
    layer.train(training)
    with pytest.raises(FoldError) as raised:
        fold(network)
    assert str(raised.value).startswith(reason)
    assert "\n" not in str(raised.value)


def test_the_module_itself_is_named_by_its_type() -> None:
    with pytest.raises(FoldError, match=r"^Branching: its forward branches"):
        fold(Branching().eval())
    with pytest.raises(FoldError, match=r"^Sequential: it is in training mode"):
        fold(nn.Sequential(nn.ReLU()))

"""Generated networks: branches, joins, shared layers, even kernels, strides and norms in odd places.

A network grows step by step on a real image, so that each step can see the shapes of what there is.
"""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from quatserve.nn import (
    ALGEBRAS,
    Algebra,
    HypercomplexBatchNorm2d,
    HypercomplexConv2d,
    HypercomplexLinear,
    join_components,
)
from tests.export.folding.networks import equal, randomise

WIDTHS = st.sampled_from([8, 16])
SIZE, CHANNELS = (9, 10), 8
MOST = 64  # channels
Step = tuple[Callable[..., Any], tuple[int, ...], nn.Module | None]


class Generated(nn.Module):
    """Steps on a growing list of maps, of which the first is the image."""

    def __init__(self, steps: list[Step], results: list[int]):
        super().__init__()
        self.layers = nn.ModuleList(layer for _, _, layer in steps if layer is not None)
        self.steps, self.results = steps, results

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        maps = [image]
        for function, inputs, layer in self.steps:
            arguments = [maps[i] for i in inputs]
            maps.append(function(*arguments) if layer is None else layer(*arguments))
        return tuple(maps[i] for i in self.results)


@st.composite
def convolutions(draw: st.DrawFn, channels: int, algebra: Algebra) -> nn.Module:
    """Ours or torch's; the latter with every argument that torch has."""
    out = draw(WIDTHS)
    if draw(st.booleans()):
        d = algebra.dimension
        divides = [groups for groups in (1, 2) if channels // d % groups == out // d % groups == 0]
        return HypercomplexConv2d(
            channels,
            out,
            draw(st.integers(1, 3)),
            stride=draw(st.sampled_from([1, 2])),
            padding=draw(st.integers(0, 2)),
            dilation=draw(st.sampled_from([1, 2])),
            groups=draw(st.sampled_from(divides)),
            bias=draw(st.booleans()),
            padding_mode=draw(st.sampled_from(["zeros", "zeros", "circular"])),
            algebra=algebra,
        )
    transposed = draw(st.integers(0, 5)) == 0
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    groups = draw(st.sampled_from([1, 1, 2, 4, channels]))
    out = channels if groups == channels else out
    return kind(
        channels,
        out,
        (draw(st.integers(1, 4)), draw(st.integers(1, 4))),
        stride=draw(st.sampled_from([1, 2])),
        padding=(draw(st.integers(0, 1)), draw(st.integers(0, 1))) if transposed else draw(st.integers(0, 2)),
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode="zeros"
        if transposed
        else draw(st.sampled_from(["zeros", "zeros", "reflect", "circular"])),
    )


@st.composite
def norms(draw: st.DrawFn, channels: int, algebra: Algebra) -> nn.Module:
    if draw(st.booleans()):
        return nn.BatchNorm2d(channels, affine=draw(st.booleans()))
    return HypercomplexBatchNorm2d(channels, whiten=draw(st.booleans()), algebra=algebra)


ALIKE: list[Callable[[Tensor], Tensor]] = [
    F.relu,
    torch.tanh,
    lambda x: x.sigmoid(),
    lambda x: 2 * x,
    lambda x: x + 1,
    lambda x: F.max_pool2d(x, 2, 1),
    lambda x: F.avg_pool2d(x, 2),
    lambda x: x.mean((2, 3), keepdim=True) + x,
    lambda x: F.relu(x, inplace=True),
    lambda x: x.mul_(0.5),
    lambda x: x.softmax(1),  # from here on, it matters which channel is which
    lambda x: x.flip(1),
    lambda x: x[:, : x.shape[1] // 2].repeat(1, 2, 1, 1),
    lambda x: x.repeat(1, 2, 1, 1),
]
PAIRS: list[Callable[[Tensor, Tensor], Tensor]] = [torch.add, torch.mul, lambda a, b: a - b, torch.maximum]
POOLS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.mean((2, 3)),
    lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1),
    lambda x: F.adaptive_avg_pool2d(x, 2).flatten(1),
    lambda x: torch.flatten(x, 1).relu(),
]


@st.composite
def steps(draw: st.DrawFn, maps: list[Tensor], made: list[tuple[int, nn.Module]], algebra: Algebra) -> Step:
    """One more step. Each kind picks inputs that fit it."""
    one = draw(st.integers(0, len(maps) - 1))
    channels = maps[one].shape[1]
    beside = [i for i, value in enumerate(maps) if value.shape[2:] == maps[one].shape[2:]]
    several = tuple(draw(st.lists(st.sampled_from(beside), min_size=2, max_size=3)))
    kind = draw(st.sampled_from(["conv", "conv", "norm", "alike", "alike", "join", "cat", "sum", "again"]))
    if kind == "join":
        return (lambda *parts: join_components(algebra, *parts)), several, None
    if kind == "cat":
        return (lambda *parts: torch.cat(parts, 1)), several, None
    if kind == "sum":
        return draw(st.sampled_from(PAIRS)), (one, draw(st.sampled_from(beside))), None
    if kind == "alike":
        return draw(st.sampled_from(ALIKE)), (one,), None
    if kind == "again" and (fitting := [layer for width, layer in made if width == channels]):
        layer = draw(st.sampled_from(fitting))
    else:
        layer = draw(norms(channels, algebra) if kind == "norm" else convolutions(channels, algebra))
        made.append((channels, layer))
    return layer, (one,), layer


@st.composite
def heads(draw: st.DrawFn, value: Tensor, algebra: Algebra) -> list[Step]:
    """From a map to a vector, as classifiers do; inputs count from the end."""
    pool = draw(st.sampled_from(POOLS))
    features = pool(value).shape[1]
    linear = (
        HypercomplexLinear(features, 8, algebra=algebra)
        if draw(st.booleans())
        else nn.Linear(features, 5, draw(st.booleans()))
    )
    norm = nn.BatchNorm1d(8 if isinstance(linear, HypercomplexLinear) else 5)
    return [(pool, (-1,), None), (linear, (-1,), linear), (norm, (-1,), norm)]


@st.composite
def networks(draw: st.DrawFn) -> nn.Module:
    algebra = draw(st.sampled_from([*ALGEBRAS.values()]))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    maps, made, taken = [torch.randn(2, CHANNELS, *SIZE)], list[tuple[int, nn.Module]](), list[Step]()
    for _ in range(draw(st.integers(1, 10))):
        step = draw(steps(maps, made, algebra))
        function, inputs, layer = step
        try:
            value = (layer or function)(*(maps[i].clone() for i in inputs))
        except RuntimeError:  # the maps have become too small for it, or do not fit each other
            continue
        if value.shape[1] <= MOST and value.isfinite().all():
            maps.append(value.detach())
            taken.append(step)
    results = (
        draw(st.lists(st.integers(0, len(maps) - 1), min_size=1, max_size=2)) if draw(st.booleans()) else []
    )
    if not results:
        taken += draw(heads(maps[-1], algebra))
        results = [-1]
    return randomise(Generated(taken, results))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(networks())
def test_any_network_folds_to_an_equal_one(network: nn.Module) -> None:
    equal(network, torch.randn(2, CHANNELS, *SIZE, dtype=torch.float64))

"""Options mean what they mean in torch: every layer against torch's own with the weight written out."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quatserve import nn as layers
from quatserve.training.nn.algebra import ALGEBRAS, Algebra, ChannelError
from quatserve.training.nn.layer import HypercomplexLayer
from tests.training.oracles import assert_close, multiply, randn

Options = dict[str, Any]
every_algebra = pytest.mark.parametrize("algebra", ALGEBRAS.values(), ids=lambda algebra: algebra.name)
SPACE = (5, 6, 4)
CONVOLUTIONS: list[Options] = [
    {},
    {"kernel_size": 2},
    {"kernel_size": 2, "padding": 1},
    {"kernel_size": 4, "padding": "same"},
    {"kernel_size": 2, "padding": "same", "dilation": 3},
    {"padding": "valid", "bias": False},
    {"padding": 2, "stride": 2, "dilation": 2},
    {"groups": 2, "padding": 1},
    {"groups": 4, "kernel_size": 1},
    {"padding": 1, "padding_mode": "reflect"},
    {"padding": "same", "kernel_size": 2, "padding_mode": "replicate", "groups": 2},
    {"padding": 2, "padding_mode": "circular", "stride": 2},
    {"padding": "valid", "padding_mode": "circular"},
]
PAIRS: list[Options] = [
    {"kernel_size": (3, 2), "padding": "same", "padding_mode": "circular", "dilation": (1, 2)},
    {"kernel_size": (1, 3), "stride": (2, 1), "padding": (0, 2), "dilation": (3, 1)},
    {"kernel_size": (2, 3), "padding": (1, 0), "padding_mode": "reflect"},
]
TRANSPOSED: list[Options] = [
    {},
    {"kernel_size": 2, "stride": 2},
    {"stride": 2, "padding": 1, "output_padding": 1, "bias": False},
    {"groups": 2, "dilation": 2, "stride": 3, "output_padding": 2},
]


def written_out(layer: HypercomplexLayer, groups: int) -> Tensor:
    """The real weight without groups, from products of basis elements: W e_b, component by component."""
    d, basis = layer.algebra.dimension, torch.eye(layer.algebra.dimension).tolist()
    weight = layer.weight.detach().unflatten(0, (d, groups, -1))  # (d, groups, rows, columns, ...)
    _, _, rows, columns, *kernel = weight.shape
    real = torch.zeros(d, groups, rows, d, groups, columns, *kernel, dtype=weight.dtype)
    for a in range(d):
        for b in range(d):
            for c, sign in enumerate(multiply(basis[a], basis[b])):
                row, column = (b, c) if layer.transposed else (c, b)
                for g in range(groups):
                    real[row, g, :, column, g] += sign * weight[a, g]
    return real.flatten(3, 5).flatten(0, 2)


def compare(ours: HypercomplexLayer, theirs: nn.Module, x: Tensor, groups: int = 1) -> None:
    with torch.no_grad():
        theirs.get_parameter("weight").copy_(written_out(ours, groups))
        if ours.bias is not None:
            ours.bias.copy_(randn(*ours.bias.shape, seed=3))
            theirs.get_parameter("bias").copy_(ours.bias)
    expected = theirs(x)
    assert_close(ours(x), expected)
    assert_close(ours(x[0]), expected[0])  # without a batch, as torch allows


def check(kind: str, algebra: Algebra, axes: int, options: Options) -> None:
    d, groups = algebra.dimension, options.get("groups", 1)
    options = {"kernel_size": 3} | options
    ours = getattr(layers, f"Hypercomplex{kind}{axes}d")(4 * d, 8 * d, algebra=algebra, **options).double()
    whole = {name: value for name, value in options.items() if name != "groups"}
    theirs = getattr(nn, f"{kind}{axes}d")(4 * d, 8 * d, **whole).double()
    compare(ours, theirs, randn(2, 4 * d, *SPACE[:axes]), groups)


# An even kernel makes torch pad the input by itself, and say so.
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("options", [*CONVOLUTIONS, *PAIRS], ids=str)
@every_algebra
def test_convolution(algebra: Algebra, options: Options) -> None:
    check("Conv", algebra, 2, options)


@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize(
    "options", [{}, {"padding": "same", "groups": 2}, {"stride": 2, "padding": 1}], ids=str
)
def test_convolution_over_other_axes(axes: int, options: Options) -> None:
    check("Conv", ALGEBRAS["quaternion"], axes, options)


@pytest.mark.parametrize("options", TRANSPOSED, ids=str)
@every_algebra
def test_transposed_convolution(algebra: Algebra, options: Options) -> None:
    check("ConvTranspose", algebra, 2, options)


@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize("options", TRANSPOSED, ids=str)
def test_transposed_convolution_over_other_axes(axes: int, options: Options) -> None:
    check("ConvTranspose", ALGEBRAS["octonion"], axes, options)


@every_algebra
def test_linear(algebra: Algebra) -> None:
    d = algebra.dimension
    ours = layers.HypercomplexLinear(3 * d, 2 * d, algebra=algebra).double()
    compare(ours, nn.Linear(3 * d, 2 * d).double(), randn(4, 3 * d))


def test_arguments_come_in_torchs_order() -> None:
    ours = layers.HypercomplexConv2d(
        8, 8, 3, 2, 1, 2, 2, False, "circular", "meta", torch.float64, algebra="complex"
    )
    theirs = nn.Conv2d(8, 8, 3, 2, 1, 2, 2, False, "circular", "meta", torch.float64)
    assert ours.weight.is_meta
    for name in (
        "in_channels",
        "kernel_size",
        "stride",
        "padding",
        "dilation",
        "groups",
        "bias",
        "padding_mode",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    ours_t = layers.HypercomplexConvTranspose2d(
        8, 8, 3, 2, 1, 1, 2, False, 2, "zeros", "meta", algebra="complex"
    )
    theirs_t = nn.ConvTranspose2d(8, 8, 3, 2, 1, 1, 2, False, 2, "zeros", "meta")
    for name in ("kernel_size", "stride", "padding", "output_padding", "groups", "bias", "dilation"):
        assert getattr(ours_t, name) == getattr(theirs_t, name), name
    assert layers.HypercomplexLinear(4, 8, False, "meta", torch.float64, algebra="complex").bias is None
    norm = layers.HypercomplexBatchNorm2d(
        8, 1e-3, 0.2, False, False, "meta", torch.float64, algebra="complex"
    )
    assert (norm.num_features, norm.eps, norm.momentum) == (8, 1e-3, 0.2)
    assert list(norm.state_dict()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_channels": 30}, r"30 channels cannot be split into quaternion numbers.* multiple of 4"),
        ({"out_channels": 6}, r"6 channels"),
        ({"groups": 3}, r"2 and 4 quaternion channels cannot be split into 3 groups"),
        ({"groups": 0}, r"into 0 groups"),
        ({"kernel_size": (3, 3, 3)}, r"kernel_size \(3, 3, 3\) has 3 numbers: give one, or 2"),
        ({"padding": "full"}, r"padding 'full' is unknown"),
        ({"padding": "same", "stride": 2}, r"padding 'same' needs stride 1"),
        ({"padding_mode": "mirror"}, r"padding_mode 'mirror' is unknown: use one of zeros, reflect"),
        ({"algebra": "sedenion"}, r"algebra 'sedenion' is unknown"),
    ],
)
def test_bad_arguments_are_named(options: Options, message: str) -> None:
    arguments: Options = {"in_channels": 8, "out_channels": 16, "kernel_size": 3, "algebra": "quaternion"}
    with pytest.raises(ValueError, match=message):
        layers.HypercomplexConv2d(**arguments | options)


def test_transposed_convolutions_pad_with_zeros_only() -> None:
    with pytest.raises(ValueError, match="padding_mode 'circular'"):
        layers.HypercomplexConvTranspose2d(4, 4, 3, padding_mode="circular", algebra="quaternion")


def test_the_algebra_is_needed_and_not_contradicted() -> None:
    with pytest.raises(TypeError, match="HypercomplexLinear needs an algebra: algebra= one of real, complex"):
        layers.HypercomplexLinear(4, 4)
    with pytest.raises(ValueError, match="QuaternionLinear is quaternion"):
        layers.QuaternionLinear(4, 4, algebra="complex")
    assert layers.QuaternionLinear(4, 4, algebra="quaternion").algebra is ALGEBRAS["quaternion"]


def test_channels_that_do_not_fit_the_norm_are_named() -> None:
    """One channel would broadcast over any number of them."""
    norm = layers.HypercomplexBatchNorm2d(4, algebra="quaternion")
    with pytest.raises(ChannelError, match="the input has 8 channels where the layer has 4"):
        norm(torch.zeros(2, 8, 3, 3))
    with pytest.raises(ValueError, match="takes inputs of 4 axes; got 3"):
        norm(torch.zeros(2, 4, 3))

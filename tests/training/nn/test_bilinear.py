"""Fewer products than d^2: the forms against the algebras, and layers by form against layers by blocks."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from quatserve import nn as layers
from quatserve.training.nn.algebra import ALGEBRAS, Algebra
from quatserve.training.nn.bilinear import combine, doubled
from quatserve.training.nn.layer import HypercomplexLayer
from tests.training.nn.test_conventions import CONVOLUTIONS, PAIRS, TRANSPOSED
from tests.training.oracles import assert_close, randn

Options = dict[str, Any]
WITH_FORM = [algebra for algebra in ALGEBRAS.values() if algebra.form]
every_form = pytest.mark.parametrize("algebra", WITH_FORM, ids=lambda algebra: algebra.name)
# An even kernel makes torch pad the input by itself, and say so.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")


def test_ranks() -> None:
    ranks = {algebra.name: algebra.form.rank for algebra in WITH_FORM if algebra.form}
    assert ranks == {"complex": 3, "quaternion": 8, "octonion": 32}


@every_form
def test_a_form_is_the_structure_of_its_algebra(algebra: Algebra) -> None:
    """sum_r left[r, a] right[r, b] out[c, r] = structure[a, b, c]."""
    assert algebra.form is not None
    U, V, W = (torch.tensor(m).double() for m in (algebra.form.left, algebra.form.right, algebra.form.out))
    assert torch.equal(torch.einsum("ra,rb,cr->abc", U, V, W), algebra.structure)


def test_doubling_takes_four_products_of_the_algebra_below() -> None:
    complex_form = ALGEBRAS["complex"].form
    assert complex_form is not None
    form = doubled(complex_form)
    assert form.rank == 12
    p, q = (randn(4, seed=seed) for seed in (0, 1))
    left, right = (torch.stack(combine(m, v.unbind())) for m, v in ((form.left, p), (form.right, q)))
    product = torch.stack(combine(form.out, (left * right).unbind()))
    assert_close(product, ALGEBRAS["quaternion"].product(p, q))


def by_form(layer: HypercomplexLayer) -> HypercomplexLayer:
    """A copy that takes the bilinear form at any width."""
    copied = copy.deepcopy(layer)
    copied.form_gains_from = {"cpu": dict.fromkeys(ALGEBRAS, 0)}  # type: ignore[misc]
    return copied


def by_blocks(layer: HypercomplexLayer) -> HypercomplexLayer:
    copied = copy.deepcopy(layer)
    copied.form_gains_from = {}  # type: ignore[misc]
    return copied


def compare(layer: HypercomplexLayer, x: Tensor, **tolerance: float) -> None:
    """Outputs and all gradients."""
    found = []
    for model in (by_form(layer), by_blocks(layer)):
        inputs = x.clone().requires_grad_()
        y = model(inputs)
        found.append(
            [y, *torch.autograd.grad((y * randn(*y.shape).to(y)).sum(), [inputs, *model.parameters()])]
        )
    assert not torch.equal(found[0][0], found[1][0])  # two ways, each with roundings of its own
    for ours, expected in zip(*found, strict=True):
        scale = expected.abs().max()
        torch.testing.assert_close(ours / scale, expected / scale, **tolerance)


def convolution(kind: str, algebra: Algebra, options: Options, width: int = 16) -> HypercomplexLayer:
    layer: HypercomplexLayer = getattr(layers, f"Hypercomplex{kind}")(
        width, 2 * width, **{"kernel_size": 3} | options, algebra=algebra
    )
    return layer


ungrouped = [options for options in [*CONVOLUTIONS, *PAIRS] if "groups" not in options]


@pytest.mark.parametrize("options", ungrouped, ids=str)
@every_form
def test_convolution(algebra: Algebra, options: Options) -> None:
    compare(convolution("Conv2d", algebra, options).double(), randn(2, 16, 6, 5), rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [options for options in TRANSPOSED if "groups" not in options], ids=str)
@every_form
def test_transposed_convolution(algebra: Algebra, options: Options) -> None:
    compare(convolution("ConvTranspose2d", algebra, options).double(), randn(2, 16, 3, 4), rtol=0, atol=1e-12)


@pytest.mark.parametrize("axes", [1, 3])
@every_form
def test_other_axes(algebra: Algebra, axes: int) -> None:
    x = randn(2, 16, *(4, 3, 5)[:axes])
    compare(convolution(f"Conv{axes}d", algebra, {"padding": 1}).double(), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(16,), (3, 16), (2, 3, 16)], ids=len)
@pytest.mark.parametrize("bias", [True, False])
@every_form
def test_linear(algebra: Algebra, shape: tuple[int, ...], bias: bool) -> None:
    layer = layers.HypercomplexLinear(16, 24, bias, algebra=algebra).double()
    compare(layer, randn(*shape), rtol=0, atol=1e-12)


@every_form
def test_wide_layers_agree_in_fp32(algebra: Algebra) -> None:
    layer = convolution("Conv2d", algebra, {"padding": 1, "bias": False}, width=128)
    compare(layer, randn(2, 128, 6, 6, dtype=torch.float32), rtol=0, atol=1e-5)
    layer = layers.HypercomplexLinear(512, 256, algebra=algebra)
    compare(layer, randn(8, 512, dtype=torch.float32), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["Conv2d", "Linear"])
@every_form
def test_gradcheck(algebra: Algebra, kind: str) -> None:
    d = algebra.dimension
    arguments = (d, 2 * d, 2) if kind == "Conv2d" else (d, 2 * d)
    layer = by_form(getattr(layers, f"Hypercomplex{kind}")(*arguments, algebra=algebra).double())
    x = randn(1, d, *((2, 3) if kind == "Conv2d" else ())).requires_grad_()

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))  # type: ignore[no-any-return]

    assert layer.bias is not None
    assert torch.autograd.gradcheck(run, (x, layer.weight, layer.bias))


# Which way a layer takes


def takes_form(layer: HypercomplexLayer, x: Tensor) -> bool:
    return layer._quicker_form(x) is not None


@pytest.mark.parametrize(
    ("layer", "wide"),
    [
        (layers.QuaternionConv2d(256, 256, 3, device="meta"), True),
        (layers.QuaternionConv2d(128, 128, 3, device="meta"), False),
        (layers.QuaternionConv2d(256, 256, 1, device="meta"), False),
        (layers.QuaternionConv2d(512, 512, 3, groups=2, device="meta"), False),
        (layers.QuaternionConvTranspose2d(512, 256, 3, device="meta"), True),
        (layers.QuaternionLinear(512, 512, device="meta"), True),
        (layers.QuaternionLinear(512, 64, device="meta"), False),
        (layers.HypercomplexConv2d(1024, 1024, 3, device="meta", algebra="real"), False),
        (layers.OctonionConv2d(256, 256, 3, device="meta"), False),
        (layers.OctonionConv2d(512, 512, 3, device="meta"), True),
        (layers.OctonionLinear(4096, 4096, device="meta"), False),
    ],
    ids=str,
)
def test_wide_layers_take_the_form(layer: HypercomplexLayer, wide: bool) -> None:
    x = torch.empty(1, 1, 1, 1)
    assert takes_form(layer, x) == wide
    assert not takes_form(layer, x.to("meta"))  # a device that was not measured
    assert not takes_form(layer, x.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert not takes_form(layer, x)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch itself
@pytest.mark.parametrize("kind", ["Conv2d", "Linear"])
@every_form
def test_compiled(algebra: Algebra, kind: str) -> None:
    """The traced graph takes the form, in one piece."""
    torch._dynamo.reset()
    d = algebra.dimension
    arguments, space = ((2 * d, 2 * d, 3), (4, 5)) if kind == "Conv2d" else ((2 * d, 2 * d), ())
    layer = by_form(getattr(layers, f"Hypercomplex{kind}")(*arguments, algebra=algebra))
    x = randn(2, 2 * d, *space, dtype=torch.float32)
    compiled: Any = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), layer(x))
    assert not torch.equal(compiled(x), by_blocks(layer)(x))

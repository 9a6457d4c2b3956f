"""What holds for every public layer: dtypes, autocast, meta, copies, states and the compiler."""

import copy
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from quatserve import nn as layers
from quatserve.training.nn.algebra import ALGEBRAS
from tests.training.oracles import assert_close, randn

# Layer -> its arguments and the shape of an input, in real channels that every algebra divides.
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = {
    "Conv1d": ((16, 16, 3), {"groups": 2, "padding": 1}, (3, 16, 7)),
    "Conv2d": ((16, 8, 2), {"padding": "same"}, (3, 16, 6, 5)),
    "Conv3d": ((8, 16, 3), {"padding": 1, "padding_mode": "circular"}, (2, 8, 3, 4, 5)),
    "ConvTranspose1d": ((16, 8, 2), {"stride": 2}, (3, 16, 7)),
    "ConvTranspose2d": ((16, 8, 2), {"stride": 2, "groups": 1}, (3, 16, 6, 5)),
    "ConvTranspose3d": ((8, 16, 2), {}, (2, 8, 2, 3, 2)),
    "Linear": ((16, 8), {}, (3, 16)),
    "BatchNorm1d": ((8,), {}, (20, 8)),
    "BatchNorm2d": ((16,), {}, (3, 16, 6, 5)),
    "BatchNorm3d": ((8,), {}, (2, 8, 3, 4, 5)),
    "Dropout": ((0.5,), {}, (3, 16, 4)),
}
every_layer = pytest.mark.parametrize("kind", CASES)
every_algebra = pytest.mark.parametrize("algebra", ALGEBRAS)
# An even kernel makes torch pad the input by itself, and say so.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")


def build(kind: str, algebra: str, **options: Any) -> nn.Module:
    arguments, own, _ = CASES[kind]
    layer: nn.Module = getattr(layers, f"Hypercomplex{kind}")(*arguments, algebra=algebra, **own, **options)
    return layer


def input_of(kind: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return randn(*CASES[kind][2], dtype=dtype)


def gradients(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """Output and gradients of a weighted sum, all of a seed of their own."""
    torch.manual_seed(1)
    x = x.clone().requires_grad_()
    y = layer(x)
    found = torch.autograd.grad((y * randn(*y.shape, seed=2).to(y)).sum(), [x, *layer.parameters()])
    return [y.detach(), *found]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@every_algebra
@every_layer
def test_float32_is_float64_rounded(kind: str, algebra: str) -> None:
    layer = build(kind, algebra)
    if kind == "Dropout":
        layer.eval()  # dtypes draw other numbers
    double = copy.deepcopy(layer).double()
    for single, expected in zip(
        gradients(layer, input_of(kind)), gradients(double, input_of(kind, torch.float64)), strict=True
    ):
        assert (single.dtype, expected.dtype) == (torch.float32, torch.float64)
        assert_close(single / expected.abs().max().float(), expected / expected.abs().max())


@every_algebra
@every_layer
def test_float64_by_default_and_by_argument(kind: str, algebra: str) -> None:
    with default_dtype(torch.float64):
        layer = build(kind, algebra)
        assert {t.dtype for t in layer.state_dict().values()} <= {torch.float64}
        assert layer(input_of(kind, torch.float64)).dtype == torch.float64
    if kind != "Dropout":
        assert {t.dtype for t in build(kind, algebra, dtype=torch.float64).parameters()} == {torch.float64}


@every_algebra
@every_layer
def test_bfloat16_autocast(kind: str, algebra: str) -> None:
    """Within its rounding of fp32: sums of a few hundred terms of size one."""
    layer = build(kind, algebra).eval().requires_grad_(False)
    x = input_of(kind)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    expected = layer(x)
    torch.testing.assert_close(y.float(), expected, atol=0.03 * float(expected.abs().max()), rtol=0)
    assert y.dtype == (torch.float32 if "Norm" in kind or kind == "Dropout" else torch.bfloat16)


@every_layer
def test_meta_leaves_no_trace(kind: str) -> None:
    """Shapes are known on meta; a layer filled from there is right, and so are layers built later."""
    with torch.device("meta"):
        layer = build(kind, "quaternion")
        shape = layer(torch.empty(CASES[kind][2])).shape
    assert all(t.is_meta for t in layer.state_dict().values())
    original, x = build(kind, "quaternion").eval(), input_of(kind)
    expected = original(x)
    assert expected.isfinite().all()
    assert expected.shape == shape
    filled = layer.to_empty(device="cpu").eval()
    filled.load_state_dict(original.state_dict())
    assert torch.equal(filled(x), expected)
    assigned = copy.deepcopy(layer).to("meta")
    assigned.load_state_dict(original.state_dict(), assign=True)
    assert torch.equal(assigned.eval()(x), expected)


@every_layer
def test_fake_tensors_leave_no_trace(kind: str) -> None:
    with FakeTensorMode():
        y = build(kind, "quaternion")(torch.empty(CASES[kind][2]))
    layer = build(kind, "quaternion").eval()
    result = layer(input_of(kind))
    assert type(result) is Tensor
    assert result.shape == y.shape
    assert result.isfinite().all()


@pytest.mark.parametrize("kind", [kind for kind in CASES if kind != "Dropout"])
def test_reset_parameters_begins_anew(kind: str) -> None:
    torch.manual_seed(3)
    layer: Any = build(kind, "octonion")
    before = copy.deepcopy(layer.state_dict())
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(7)
    torch.manual_seed(3)
    layer.reset_parameters()
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


@every_algebra
@every_layer
def test_copies_and_states_compute_the_same(kind: str, algebra: str) -> None:
    layer, x = build(kind, algebra), input_of(kind)
    layer(x)  # moves the running statistics of a norm
    layer.eval()
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = build(kind, algebra).eval()
    other.load_state_dict(torch.load(file))
    pickled = io.BytesIO()
    torch.save(layer, pickled)
    pickled.seek(0)
    for again in (other, copy.deepcopy(layer), torch.load(pickled, weights_only=False)):
        assert torch.equal(again(x), layer(x))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch itself
@pytest.mark.parametrize("training", [True, False])
@every_algebra
@every_layer
def test_traced_whole_by_the_compiler(kind: str, algebra: str, training: bool) -> None:
    """No break in the graph, and the same outputs and gradients."""
    layer = build(kind, algebra).train(training)
    if kind == "Dropout":
        layer.eval()  # the traced one draws other numbers
    torch._dynamo.reset()
    compiled = torch.compile(copy.deepcopy(layer), backend="aot_eager", fullgraph=True)
    x = input_of(kind)
    for traced, eager in zip(gradients(compiled, x), gradients(layer, x), strict=True):  # type: ignore[arg-type]
        torch.testing.assert_close(traced, eager, rtol=1e-4, atol=1e-4)

"""Convolution against hypercomplex products summed in plain loops."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from quatserve.training.nn.algebra import ALGEBRAS, QUATERNION, Algebra
from quatserve.training.nn.conv import HypercomplexConv2d
from tests.training.oracles import DTYPES, assert_close, multiply, randn

every_algebra = pytest.mark.parametrize("algebra", ALGEBRAS.values(), ids=lambda algebra: algebra.name)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def convolve(weight: Tensor, h: Tensor, stride: int, dilation: int) -> Tensor:
    """sum over input channels and taps of W h; weight (d, out, in, k, k), h (d, in, H, W)."""
    d, n_out, n_in, size, _ = weight.shape
    height, width = h.shape[2:]
    rows, columns = range(0, height, stride), range(0, width, stride)
    y = torch.zeros(d, n_out, len(rows), len(columns), dtype=torch.float64)
    taps = [
        (a, b, dilation * (a - size // 2), dilation * (b - size // 2))
        for a in range(size)
        for b in range(size)
    ]
    for o in range(n_out):
        for r, row in enumerate(rows):
            for c, column in enumerate(columns):
                for a, b, down, right in taps:
                    if 0 <= row + down < height and 0 <= column + right < width:
                        for i in range(n_in):
                            w, x = weight[:, o, i, a, b], h[:, i, row + down, column + right]
                            y[:, o, r, c] += torch.tensor(multiply(w.tolist(), x.tolist()), dtype=y.dtype)
    return y


@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(3, 1, 1), (3, 2, 1), (3, 1, 2), (1, 2, 1)])
@every_dtype
@every_algebra
def test_convolution_is_the_sum_of_products(
    algebra: Algebra, dtype: torch.dtype, kernel: int, stride: int, dilation: int
) -> None:
    d = algebra.dimension
    layer = HypercomplexConv2d(
        2 * d,
        3 * d,
        kernel,
        stride,
        dilation * (kernel // 2),
        dilation,
        bias=False,
        dtype=dtype,
        algebra=algebra,
    )
    h = randn(1, 2 * d, 3, 4, dtype=dtype)
    weight = layer.weight.detach().double().unflatten(0, (d, 3))
    expected = convolve(weight, h[0].double().unflatten(0, (d, 2)), stride, dilation)
    assert_close(layer(h)[0], expected.flatten(0, 1))


def test_convolution_is_equation_8() -> None:
    """With real convolutions of the four parts, as the paper groups its terms."""
    layer = HypercomplexConv2d(8, 12, 3, padding=1, bias=False, algebra=QUATERNION).double()
    A, B, C, D = layer.weight.detach().chunk(4)
    h = randn(2, 8, 5, 6)
    w, x, y, z = h.chunk(4, dim=1)

    def conv(kernel: Tensor, image: Tensor) -> Tensor:
        return F.conv2d(image, kernel, padding=1)

    expected = [
        conv(A, w) - conv(B, x) - conv(C, y) - conv(D, z),
        conv(A, x) + conv(B, w) + conv(C, z) - conv(D, y),
        conv(A, y) - conv(B, z) + conv(C, w) + conv(D, x),
        conv(A, z) + conv(B, y) - conv(C, x) + conv(D, w),
    ]
    assert_close(layer(h), torch.cat(expected, 1))


@every_algebra
def test_gradients(algebra: Algebra) -> None:
    d = algebra.dimension
    layer = HypercomplexConv2d(d, 2 * d, 3, 2, 1, algebra=algebra).double()
    x = randn(1, d, 3, 4).requires_grad_()
    parameters = dict(layer.named_parameters())

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(run, (x, parameters["weight"], parameters["bias"]))


def test_layout_of_the_input_does_not_matter() -> None:
    layer = HypercomplexConv2d(8, 8, 3, algebra=QUATERNION)
    x = randn(2, 8, 5, 7, dtype=torch.float32)
    y = layer(x.contiguous(memory_format=torch.channels_last))
    assert_close(y, layer(x))
    assert y.is_contiguous(memory_format=torch.channels_last)

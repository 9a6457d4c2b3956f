"""Orthogonal steps stay within the algebra, keep a kernel's norm, and learn."""

import pytest
import torch

from quatserve.training.loop.muon import Muon, hypercomplex_convolutions, inverse_root
from quatserve.training.networks.residual import Network, NetworkConfig
from quatserve.training.nn.algebra import ALGEBRAS, OCTONION, QUATERNION, Algebra
from quatserve.training.nn.blocks import block_weight
from quatserve.training.nn.conv import HypercomplexConv2d

ASSOCIATIVE = [algebra for algebra in ALGEBRAS.values() if algebra is not OCTONION]


def matrix_of(layer: HypercomplexConv2d, kernel: torch.Tensor) -> torch.Tensor:
    return block_weight(layer.algebra, kernel).flatten(1)


def stepped(layer: HypercomplexConv2d, rate: float = 1.0) -> torch.Tensor:
    """The direction of one step along a random gradient."""
    before = layer.weight.detach().clone()
    muon = Muon([layer], momentum=0.0)
    muon.param_groups[0]["lr"] = rate
    layer.weight.grad = torch.randn_like(before)
    muon.step()
    scaled = before * (len(before) / layer.algebra.dimension) ** 0.5 / before.norm()
    step: torch.Tensor = (scaled - layer.weight.detach()) / rate
    return step


def orthogonalised(matrix: torch.Tensor) -> torch.Tensor:
    return inverse_root(matrix @ matrix.T) @ matrix


def test_singular_values_come_close_to_one() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalised(torch.randn(32, 288)))
    assert values.min() > 0.6
    assert values.max() < 1.25


def test_it_is_the_plain_iteration() -> None:
    """x <- a x + b (x x^T) x + c (x x^T)^2 x, five times, in float64."""
    torch.manual_seed(5)
    matrix = torch.randn(24, 60)
    x = matrix.double() / matrix.double().norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
    torch.testing.assert_close(orthogonalised(matrix).double(), x, rtol=0, atol=1e-4)


def test_a_gradient_of_low_rank_does_no_harm() -> None:
    torch.manual_seed(6)
    found = orthogonalised(torch.randn(32, 2) @ torch.randn(2, 288))
    assert torch.linalg.svdvals(found)[:2].min() > 0.6
    assert torch.linalg.svdvals(found).max() < 1.25
    assert orthogonalised(torch.zeros(4, 9)).abs().max() == 0


@pytest.mark.parametrize("algebra", ASSOCIATIVE, ids=lambda a: a.name)
@pytest.mark.parametrize("size", [1, 3])
def test_a_step_is_orthogonal_as_the_layer_applies_it(algebra: Algebra, size: int) -> None:
    torch.manual_seed(1)
    layer = HypercomplexConv2d(16, 16, size, algebra=algebra)
    values = torch.linalg.svdvals(matrix_of(layer, stepped(layer)))
    if size == 3:
        assert values.min() > 0.6
    assert values.max() < 1.25


def test_the_whole_block_matrix_is_that_of_its_first_column() -> None:
    """U V^T of a quaternion block matrix has quaternion structure: nothing is lost by keeping one column."""
    torch.manual_seed(2)
    layer = HypercomplexConv2d(16, 16, 3, algebra=QUATERNION)
    gradient = torch.randn_like(layer.weight)
    blocks = block_weight(layer.algebra, gradient)
    whole = orthogonalised(blocks.flatten(1)).reshape(blocks.shape)
    components = whole[:, : gradient.shape[1]]
    torch.testing.assert_close(block_weight(layer.algebra, components), whole, rtol=0, atol=2e-5)


@pytest.mark.parametrize("algebra", ALGEBRAS.values(), ids=lambda a: a.name)
def test_a_kernel_keeps_the_norm_of_an_orthogonal_matrix(algebra: Algebra) -> None:
    torch.manual_seed(3)
    layer = HypercomplexConv2d(16, 32, 3, algebra=algebra)
    stepped(layer, rate=1e-6)
    assert matrix_of(layer, layer.weight.detach()).norm().item() == pytest.approx(32**0.5, rel=1e-4)


def test_momentum_is_nesterovs() -> None:
    torch.manual_seed(4)
    layer = HypercomplexConv2d(8, 8, 3, algebra=QUATERNION)
    muon = Muon([layer], momentum=0.5)
    first, second = torch.randn_like(layer.weight), torch.randn_like(layer.weight)
    for gradient in (first, second):
        layer.weight.grad = gradient.clone()
        muon.step()
    buffer = 0.5 * first + second
    torch.testing.assert_close(muon.state[layer.weight]["momentum_buffer"], buffer)
    before = layer.weight.detach() * (8 / 4) ** 0.5 / layer.weight.detach().norm()
    muon.param_groups[0]["lr"] = 0.1
    third = torch.randn_like(first)
    layer.weight.grad = third.clone()
    muon.step()
    ahead = third + 0.5 * (0.5 * buffer + third)
    expected = orthogonalised(matrix_of(layer, ahead)).reshape(8, 8, 3, 3)[:, :2]
    torch.testing.assert_close(layer.weight.detach(), before - 0.1 * expected, rtol=1e-4, atol=1e-6)


def test_it_takes_every_hypercomplex_kernel_and_nothing_else() -> None:
    network = Network(NetworkConfig(depth=1, width=8))
    names = {name for name, module in network.named_modules() if module in hypercomplex_convolutions(network)}
    assert "stem" in names
    assert "blocks.1.shortcut" in names
    assert not any(name.startswith(("components", "head")) for name in names)

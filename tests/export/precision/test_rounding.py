"""GPTQ rounding: results lie on the grid, lose less than nearest rounding, and reach the file."""

import numpy as np
import pytest
import torch
from torch import Tensor

from quatserve.export.folding import fold
from quatserve.export.graph import write_graph
from quatserve.export.interface import Interface
from quatserve.export.precision.int8 import quantise, quantised_layers, with_weights
from quatserve.export.precision.rounding import LARGEST, round_rows, rounded_weights
from quatserve.service.artifact import Precision, Task
from quatserve.training.networks.residual import NetworkConfig
from tests.export.precision.test_int8 import arrays
from tests.export.tiny import pictures, randomised

ROWS, COLUMNS = 8, 60


def weights(seed: int = 0) -> Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(seed)).double()


def steps_of(weight: Tensor) -> Tensor:
    return weight.abs().amax(1, keepdim=True) / LARGEST


def nearest(weight: Tensor) -> Tensor:
    return (weight / steps_of(weight)).round() * steps_of(weight)


def moments_of(inputs: Tensor) -> Tensor:
    return inputs.T @ inputs / len(inputs)


@pytest.mark.parametrize("seed", range(5))
def test_correlated_inputs_lose_less_than_by_nearest_rounding(seed: int) -> None:
    """Inputs are like image patches: few factors, many columns, a mean above zero."""
    generator = torch.Generator().manual_seed(seed)
    factors, loadings = (torch.randn(*s, generator=generator).double() for s in ((4000, 12), (12, COLUMNS)))
    inputs = (factors @ loadings + 0.2 * torch.randn(4000, COLUMNS, generator=generator) + 1).relu()
    weight = weights(seed)
    ours, theirs = (
        (inputs @ (found - weight).T).square().mean()
        for found in (round_rows(weight, moments_of(inputs)), nearest(weight))
    )
    assert ours < 0.5 * theirs


def test_uncorrelated_inputs_give_nearest_rounding() -> None:
    torch.testing.assert_close(round_rows(weights(), torch.eye(COLUMNS)), nearest(weights()), rtol=0, atol=0)


def test_weights_are_whole_steps_and_the_largest_is_exact() -> None:
    weight = weights()
    weight[3] = 0  # a row of zeros has no step
    inputs = (
        torch.randn(500, 5).double() @ torch.randn(5, COLUMNS).double()
    )  # of rank five, so that damping is needed
    found = round_rows(weight, moments_of(inputs))
    rows = [i for i in range(ROWS) if i != 3]
    steps = found[rows] / steps_of(weight)[rows]
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-9)
    assert (steps.abs().amax(1).round() == LARGEST).all()
    assert (found[3] == 0).all()


def test_zero_inputs_give_nearest_rounding() -> None:
    weight = weights()
    found = round_rows(weight, torch.zeros(COLUMNS, COLUMNS))
    steps = steps_of(weight)
    torch.testing.assert_close(found, (weight / steps).round() * steps, rtol=0, atol=1e-9)


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_the_file_holds_exactly_the_rounded_weights(task: str) -> None:
    interface = Interface(task=Task(task), height=16, width=16)
    folded = fold(randomised(NetworkConfig(width=16, depth=1, task=task)))  # type: ignore[arg-type]
    images = pictures(8, 16, 16)
    single = write_graph(folded, interface, Precision.FP32)
    weights = rounded_weights(folded, quantised_layers(single), interface, images)
    int8 = arrays(quantise(with_weights(single, weights).SerializeToString(), images))
    assert len(weights) == 11
    assert all(name.startswith("blocks.") for name in weights)
    for name, weight in weights.items():
        assert not torch.equal(weight, folded.get_parameter(name))
        scales = int8[f"{name}_scale"].reshape(-1, 1, 1, 1)
        restored = int8[f"{name}_quantized"].astype(int) * scales
        np.testing.assert_allclose(restored, weight.numpy(), rtol=0, atol=1e-5 * scales.max())

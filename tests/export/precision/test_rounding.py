"""Rounding that takes errors back: on the grid, better than the nearest step, and what the file holds."""

import numpy as np
import pytest
import torch
from torch import Tensor

from quatserve.export.folded import fold
from quatserve.export.graph import write_graph
from quatserve.export.precision.int8 import quantise
from quatserve.export.precision.rounding import LARGEST, round_rows, rounded
from quatserve.service.artifact import Precision
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
def test_correlated_inputs_see_a_fraction_of_the_error(seed: int) -> None:
    """Inputs as patches of pictures are: a few causes, many columns, a mean."""
    generator = torch.Generator().manual_seed(seed)
    causes, mix = (torch.randn(*s, generator=generator).double() for s in ((4000, 12), (12, COLUMNS)))
    inputs = (causes @ mix + 0.2 * torch.randn(4000, COLUMNS, generator=generator) + 1).relu()
    weight = weights(seed)
    ours, theirs = (
        (inputs @ (found - weight).T).square().mean()
        for found in (round_rows(weight, moments_of(inputs)), nearest(weight))
    )
    assert ours < 0.5 * theirs


def test_inputs_that_have_nothing_in_common_leave_the_nearest_steps() -> None:
    torch.testing.assert_close(round_rows(weights(), torch.eye(COLUMNS)), nearest(weights()), rtol=0, atol=0)


def test_everything_is_a_whole_step_and_the_largest_stays() -> None:
    weight = weights()
    weight[3] = 0  # a row of nothing has no step
    inputs = torch.randn(500, 5).double() @ torch.randn(5, COLUMNS).double()  # of rank five: damping at work
    found = round_rows(weight, moments_of(inputs))
    rows = [i for i in range(ROWS) if i != 3]
    steps = found[rows] / steps_of(weight)[rows]
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-9)
    assert (steps.abs().amax(1).round() == LARGEST).all()
    assert (found[3] == 0).all()


def test_without_any_input_every_weight_takes_its_nearest_step() -> None:
    weight = weights()
    found = round_rows(weight, torch.zeros(COLUMNS, COLUMNS))
    steps = steps_of(weight)
    torch.testing.assert_close(found, (weight / steps).round() * steps, rtol=0, atol=1e-9)


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_the_file_holds_the_rounded_weights_and_no_others(task: str) -> None:
    folded = fold(randomised(NetworkConfig(width=8, depth=1, task=task)))  # type: ignore[arg-type]
    images = pictures(8, 16, 16)
    careful = rounded(folded, images)
    int8 = arrays(quantise(write_graph(careful, 16, 16, Precision.FP32).SerializeToString(), images))
    kernels = {name: p for name, p in careful.named_parameters() if name.endswith("weight")}
    changed = [
        name for name, p in folded.named_parameters() if name in kernels and not torch.equal(p, kernels[name])
    ]
    assert len(changed) == 11
    assert all(name.startswith("blocks.") for name in changed)
    for name in changed:
        scales = int8[f"{name}_scale"].reshape(-1, 1, 1, 1)
        restored = int8[f"{name}_quantized"].astype(int) * scales
        np.testing.assert_allclose(restored, kernels[name].numpy(), rtol=0, atol=1e-5 * scales.max())

"""How large a network is, and how much work one image is."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from quatserve.training.networks.residual import RGB
from quatserve.training.nn.conv import HypercomplexConv2d
from quatserve.training.nn.linear import HypercomplexLinear
from quatserve.training.nn.norm import HypercomplexBatchNorm2d


def count_parameters(network: nn.Module) -> tuple[int, int]:
    """(total, trainable). The total counts running statistics too, as the paper's tables do.

    A covariance is stored as (C, d, d); it has d(d+1)/2 distinct entries a channel.
    """
    trainable = sum(parameter.numel() for parameter in network.parameters())
    norms = (module for module in network.modules() if isinstance(module, HypercomplexBatchNorm2d))
    return trainable + sum(map(_running_statistics, norms)), trainable


def count_multiply_accumulates(network: nn.Module, height: int, width: int) -> int:
    """Of the convolutions and the dense layer for one image, as the real operations that they are run as.

    A hypercomplex weight is multiplied out to its block matrix, so algebras of equal width cost the same but
    for their learned components. Normalisation, ReLU and sums are left out: at inference normalisation
    is folded into the convolutions, all but the one that opens each block.
    """
    counted = 0

    def count(module: nn.Module, _: Any, output: Tensor) -> None:
        nonlocal counted
        counted += output.numel() * _inputs_per_output(module)

    model = copy.deepcopy(network).to("meta")  # shapes only: nothing is computed
    for module in model.modules():
        if isinstance(module, HypercomplexConv2d | HypercomplexLinear | nn.Conv2d | nn.Linear):
            module.register_forward_hook(count)
    model(torch.empty(1, RGB, height, width, device="meta"))
    return counted


def _running_statistics(norm: HypercomplexBatchNorm2d) -> int:
    d = norm.algebra.dimension
    return norm.running_mean.numel() + (norm.channels * d * (d + 1) // 2 if norm.scales else 0)


def _inputs_per_output(module: nn.Module) -> int:
    """How many products make one number of a layer's output."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    inputs = weight[0].numel()
    if isinstance(module, HypercomplexConv2d | HypercomplexLinear):
        return inputs * module.algebra.dimension
    return inputs

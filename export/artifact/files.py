"""Writes the ONNX file of each precision, and decides which of them ship."""

from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import onnx
from torch import fx

from quatserve.export.artifact.describe import FILES
from quatserve.export.artifact.plan import Plan
from quatserve.export.graph import write_graph
from quatserve.export.precision.int8 import quantise, quantised_layers, with_weights
from quatserve.export.precision.rounding import rounded_weights
from quatserve.export.proof.contract import check_graph
from quatserve.export.proof.parity import prove
from quatserve.export.proof.runtime import predictor_of
from quatserve.export.proof.scores import LOSS_UNITS, MAX_LOSS, answers_to_agree_with, loss_of, measure
from quatserve.export.scenes import synthetic
from quatserve.service.artifact import Metric, Parity, Precision, Task
from quatserve.training.loop.prediction import Images

PROOF_REAL = {Task.CLASSIFICATION: 16, Task.SEGMENTATION: 4}  # one road frame costs thirty CIFAR images
PROOF_SYNTHETIC = {Task.CLASSIFICATION: 16, Task.SEGMENTATION: 8}
Say = Callable[[str], None]
Models = dict[Precision, bytes]


def write_fp32(plan: Plan, folded: fx.GraphModule, directory: Path, say: Say) -> Parity:
    """Write the fp32 file, read it back and compare it with the network."""
    path = directory / FILES[Precision.FP32]
    path.write_bytes(_checked(write_graph(folded, plan.interface, Precision.FP32), Precision.FP32, plan))
    parity = prove(plan.network, path.read_bytes(), _proof_images(plan), plan.interface)
    levels = "" if parity.max_levels is None else f", {parity.max_levels} of 255 levels"
    batches = ", ".join(map(str, parity.batches))
    say(
        f"fp32: logits within {parity.max_difference:.2g} of the network in float64, the largest being "
        f"{parity.max_logit:.3g}{levels} ({parity.images} images, batches of {batches})"
    )
    return parity


def write_others(
    plan: Plan, folded: fx.GraphModule, precisions: Collection[Precision], directory: Path
) -> dict[Precision, str]:
    """Write fp16 and INT8. Return the reason for each that cannot be made."""
    reasons = {}
    if Precision.FP16 in precisions:
        half = write_graph(folded, plan.interface, Precision.FP16)
        (directory / FILES[Precision.FP16]).write_bytes(_checked(half, Precision.FP16, plan))
    if Precision.INT8 in precisions:
        single = onnx.load(directory / FILES[Precision.FP32])
        layers = quantised_layers(single)
        if plan.splits.calibration is None:
            reasons[Precision.INT8] = "no calibration images were given"
        elif not layers:
            reasons[Precision.INT8] = "no convolution of the network is wide enough"
        else:
            images = plan.splits.calibration.images
            weights = rounded_weights(folded, layers, plan.interface, images)
            integer = quantise(with_weights(single, weights).SerializeToString(), images)
            (directory / FILES[Precision.INT8]).write_bytes(_checked(integer, Precision.INT8, plan))
    return reasons


def compare(
    plan: Plan, models: Models, max_loss: float | None, say: Say
) -> tuple[list[Precision], tuple[Metric, ...]]:
    """Return the precisions that lose too much against fp32, and the scores of the others."""
    predictors = {p: predictor_of(model, plan.output) for p, model in models.items()}
    answers = answers_to_agree_with(predictors[Precision.FP32], plan.splits)
    refused: list[Precision] = []
    metrics: tuple[Metric, ...] = ()
    for precision, predict in predictors.items():
        found = metrics + measure(predict, plan.splits, precision, answers)
        if precision is Precision.FP32 or _may_ship(plan, precision, found, max_loss, say):
            metrics = found
        else:
            refused.append(precision)
    return refused, metrics


def _may_ship(
    plan: Plan, precision: Precision, metrics: tuple[Metric, ...], max_loss: float | None, say: Say
) -> bool:
    loss = loss_of(precision, plan.task, plan.splits, metrics)
    bound = MAX_LOSS[plan.task] if max_loss is None else max_loss
    unit, split = LOSS_UNITS[plan.task], plan.splits.comparison.split
    how = "loses {} {} against fp32" if plan.splits.held_out else "disagrees with fp32 by {} {}"
    good = loss <= bound  # False for NaN
    verdict = "" if good else f", and {bound:g} is allowed: refused"
    say(f"{precision}: {how.format(f'{loss:.3g}', unit)} on {split} images{verdict}")
    return good


def _checked(model: onnx.ModelProto, precision: Precision, plan: Plan) -> bytes:
    check_graph(model, precision, ours=plan.origin.network is not None)
    return bytes(model.SerializeToString())


def _proof_images(plan: Plan) -> Images:
    real = plan.splits.samples.images
    picked = np.linspace(0, len(real) - 1, min(len(real), PROOF_REAL[plan.task])).astype(int)
    return np.concatenate([real[picked], synthetic(PROOF_SYNTHETIC[plan.task], *plan.size)])

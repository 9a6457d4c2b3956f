"""Builds an artifact from a run.

The steps are: fold, write the files, prove fp32 equal to the network, compare the other precisions, describe.
The artifact is published only if all of them succeed.
"""

import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from torch import fx

from quatserve.export.artifact.card import write_card
from quatserve.export.artifact.describe import FILES, describe, model_file
from quatserve.export.artifact.overlay import OVERLAY, SAMPLE, draw_overlay
from quatserve.export.artifact.source import read_run
from quatserve.export.artifact.staging import name_and_version, staged
from quatserve.export.datasets import Splits, read_splits
from quatserve.export.folding import fold
from quatserve.export.graph import write_graph
from quatserve.export.interface import Interface
from quatserve.export.precision.int8 import quantise, quantised_layers, with_weights
from quatserve.export.precision.rounding import rounded_weights
from quatserve.export.proof.contract import check_graph
from quatserve.export.proof.parity import prove
from quatserve.export.proof.probe import pack_probe, probe_images, tolerance
from quatserve.export.proof.runtime import predictor_of
from quatserve.export.proof.scenes import synthetic
from quatserve.export.proof.scores import LOSS_UNITS, MAX_LOSS, answers_to_agree_with, loss_of, measure
from quatserve.service.artifact import (
    CARD_FILE,
    DESCRIPTION_FILE,
    OUTPUT_NAMES,
    PROBE_FILE,
    Description,
    Metric,
    Parity,
    Precision,
    Task,
)
from quatserve.training.errors import UserError
from quatserve.training.loop.prediction import Images
from quatserve.training.loop.run import CURVES, RunConfig
from quatserve.training.networks.residual import Network

PROOF_REAL = {Task.CLASSIFICATION: 16, Task.SEGMENTATION: 4}  # one road frame costs thirty CIFAR images
PROOF_SYNTHETIC = {Task.CLASSIFICATION: 16, Task.SEGMENTATION: 8}
Say = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """The inputs of a build: the trained network, its configuration and the images."""

    network: Network
    config: RunConfig
    splits: Splits

    @property
    def task(self) -> Task:
        return Task(self.network.config.task)

    @property
    def output(self) -> str:
        return OUTPUT_NAMES[self.task]

    @property
    def size(self) -> tuple[int, int]:
        return self.config.recipe.height, self.config.recipe.width

    @property
    def interface(self) -> Interface:
        height, width = self.size
        return Interface(task=self.task, height=height, width=width)


def build(
    run: Path,
    data: Path,
    out: Path,
    precisions: Collection[Precision] | None = None,
    *,
    force: bool = False,
    max_loss: float | None = None,
    say: Say = print,
) -> Description:
    """Write the artifact `out` from the finished run. On failure raise UserError and leave nothing behind.

    A precision that loses too much is an error if the caller named it, and is left out otherwise.
    """
    name, version = name_and_version(out)
    network, config = read_run(run)
    with staged(out, force=force) as directory:
        source = Source(network, config, read_splits(config.recipe, data))
        folded = fold(network)
        parity = _write_fp32(source, folded, directory, say)
        _write_others(source, folded, precisions or tuple(Precision), directory)
        models = {
            p: (directory / FILES[p]).read_bytes() for p in Precision if (directory / FILES[p]).exists()
        }
        refused, metrics = _compare(source, models, max_loss, say)
        if refused and precisions:
            raise UserError(
                f"{refused[0]} loses too much: leave it out of --precision, or allow more by --max-loss"
            )
        for precision in refused:
            del models[precision]
            (directory / FILES[precision]).unlink()
        tolerances = _write_probe(source, models, directory)
        description = describe(
            name,
            version,
            folded=folded,
            network=network,
            config=config,
            splits=source.splits,
            parity=parity,
            metrics=metrics,
            files=tuple(model_file(p, model, tolerances[p]) for p, model in models.items()),
            probe=(directory / PROBE_FILE).read_bytes(),
        )
        (directory / DESCRIPTION_FILE).write_text(description.model_dump_json(indent=2) + "\n")
        _write_for_people(source, description, run, directory, models[Precision.FP32])
    return description


def _write_fp32(source: Source, folded: fx.GraphModule, directory: Path, say: Say) -> Parity:
    """Write the fp32 file, read it back and compare it with the network."""
    path = directory / FILES[Precision.FP32]
    path.write_bytes(_checked(write_graph(folded, source.interface, Precision.FP32), Precision.FP32))
    parity = prove(source.network, path.read_bytes(), _proof_images(source), source.interface)
    levels = "" if parity.max_levels is None else f", {parity.max_levels} of 255 levels"
    say(
        f"fp32: within {parity.max_difference:.2g}{levels} of the network in float64 "
        f"({parity.images} images, batches of {', '.join(map(str, parity.batches))})"
    )
    return parity


def _write_others(
    source: Source, folded: fx.GraphModule, precisions: Collection[Precision], directory: Path
) -> None:
    if Precision.FP16 in precisions:
        half = write_graph(folded, source.interface, Precision.FP16)
        (directory / FILES[Precision.FP16]).write_bytes(_checked(half, Precision.FP16))
    if Precision.INT8 in precisions:
        images = source.splits.calibration.images
        single = onnx.load(directory / FILES[Precision.FP32])
        weights = rounded_weights(folded, quantised_layers(single), source.interface, images)
        integer = quantise(with_weights(single, weights).SerializeToString(), images)
        (directory / FILES[Precision.INT8]).write_bytes(_checked(integer, Precision.INT8))


def _checked(model: onnx.ModelProto, precision: Precision) -> bytes:
    check_graph(model, precision)
    return bytes(model.SerializeToString())


def _proof_images(source: Source) -> Images:
    real = source.splits.samples.images
    picked = np.linspace(0, len(real) - 1, PROOF_REAL[source.task]).astype(int)
    return np.concatenate([real[picked], synthetic(PROOF_SYNTHETIC[source.task], *source.size)])


def _compare(
    source: Source, models: dict[Precision, bytes], max_loss: float | None, say: Say
) -> tuple[list[Precision], tuple[Metric, ...]]:
    """Return the precisions that lose too much against fp32, and the scores of the others."""
    predictors = {p: predictor_of(model, source.output) for p, model in models.items()}
    answers = answers_to_agree_with(predictors[Precision.FP32], source.splits)
    refused: list[Precision] = []
    metrics: tuple[Metric, ...] = ()
    for precision, predict in predictors.items():
        found = metrics + measure(predict, source.splits, precision, answers)
        if precision is Precision.FP32 or _may_ship(source, precision, found, max_loss, say):
            metrics = found
        else:
            refused.append(precision)
    return refused, metrics


def _may_ship(
    source: Source, precision: Precision, metrics: tuple[Metric, ...], max_loss: float | None, say: Say
) -> bool:
    loss = loss_of(precision, source.splits, metrics)
    bound = MAX_LOSS[source.task] if max_loss is None else max_loss
    unit, split = LOSS_UNITS[source.task], source.splits.comparison.split
    how = "loses {} {} against fp32" if source.splits.held_out else "disagrees with fp32 by {} {}"
    good = loss <= bound  # False for NaN
    verdict = "" if good else f", and {bound:g} is allowed: refused"
    say(f"{precision}: {how.format(f'{loss:.3g}', unit)} on {split} images{verdict}")
    return good


def _write_probe(source: Source, models: dict[Precision, bytes], directory: Path) -> dict[Precision, float]:
    """Write the probe file and return the tolerance of each precision."""
    images = probe_images(source.task, source.splits, *source.size)
    outputs = {p: predictor_of(model, source.output)(images) for p, model in models.items()}
    if bad := [p for p, values in outputs.items() if not np.isfinite(values).all()]:
        raise UserError(
            f"{bad[0]} gives numbers that are not finite on the probe: leave it out of --precision"
        )
    (directory / PROBE_FILE).write_bytes(pack_probe(images, outputs))
    return {
        p: tolerance(source.task, p, model, source.output, images, outputs) for p, model in models.items()
    }


def _write_for_people(
    source: Source, description: Description, run: Path, directory: Path, fp32: bytes
) -> None:
    """Write the card and its pictures."""
    pictures = []
    if (run / CURVES).is_file():
        shutil.copyfile(run / CURVES, directory / CURVES)
        pictures.append(CURVES)
    if source.task is Task.SEGMENTATION and SAMPLE.is_file():
        draw_overlay(predictor_of(fp32, source.output), *source.size, directory / OVERLAY)
        pictures.append(OVERLAY)
    (directory / CARD_FILE).write_text(write_card(description, source.config, pictures))

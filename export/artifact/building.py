"""Builds an artifact from a network: folds it, proves the files equal to it, and writes the directory.

The artifact is published only if every step succeeds.
"""

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from torch import nn

from quatserve.export.artifact.card import write_card
from quatserve.export.artifact.describe import FILES, describe, model_file
from quatserve.export.artifact.files import Models, Say, compare, write_fp32, write_others
from quatserve.export.artifact.origin import UNKNOWN, Origin
from quatserve.export.artifact.overlay import OVERLAY, SAMPLE, draw_overlay
from quatserve.export.artifact.plan import Plan, plan_of
from quatserve.export.artifact.staging import name_and_version, staged
from quatserve.export.artifact.triton import write_repository_files
from quatserve.export.datasets import Splits
from quatserve.export.folding import fold
from quatserve.export.interface import Channels
from quatserve.export.proof.probe import pack_probe, probe_images, tolerance
from quatserve.export.proof.runtime import predictor_of
from quatserve.service.artifact import (
    CARD_FILE,
    DESCRIPTION_FILE,
    MAX_TOLERANCES,
    PROBE_FILE,
    Colour,
    Description,
    Precision,
)
from quatserve.training.errors import UserError
from quatserve.training.loop.prediction import Images
from quatserve.training.loop.run import CURVES

HALF = (0.5, 0.5, 0.5)


def build(
    module: nn.Module,
    out: Path | str,
    *,
    labels: Sequence[str],
    size: int | tuple[int, int],
    task: str = "classification",
    mean: Channels = HALF,
    std: Channels = HALF,
    resize: str | None = None,
    calibration: Images | None = None,
    threshold: float = 0.5,
    palette: Sequence[Colour] | None = None,
    precisions: Collection[Precision] | None = None,
    max_loss: float | None = None,
    force: bool = False,
    splits: Splits | None = None,
    origin: Origin = UNKNOWN,
    say: Say = print,
) -> Description:
    """Write the artifact `out`, models/NAME/VERSION, of a module. On failure raise UserError, leave nothing.

    `module` takes float RGB (B, 3, height, width), (pixel / 255 - mean) / std, and returns logits:
    (B, classes), or for task "segmentation" (B, maps, height, width). A single map is that of one foreground
    class; of several, the first is the background's. `labels` names each class or map. The module must be in
    evaluation mode and traceable by torch.fx; see `fold`.

    `size` is the network's input: (height, width), or one number for both. `resize` says how other images are
    scaled to it: "centre-square" (default of classifiers) or "stretch". `calibration`, uint8 images
    (N, height, width, 3), sets the ranges of INT8, and every second one compares the precisions; without it
    there is no INT8 file. `threshold` is the probability from which a pixel of a single map is foreground,
    `palette` the colours of several maps.

    `precisions` are those that must ship; by default all ship that lose no more than `max_loss` against fp32.
    A run of `quatserve fit` brings `splits`, its own images, and `origin`, what is known of its training.
    """
    name, version = name_and_version(Path(out))
    plan = plan_of(
        module,
        labels=labels,
        size=size,
        task=task,
        mean=mean,
        std=std,
        resize=resize,
        calibration=calibration,
        threshold=threshold,
        palette=palette,
        splits=splits,
        origin=origin,
    )
    with staged(Path(out), force=force) as directory:
        folded = fold(module)
        parity = write_fp32(plan, folded, directory, say)
        impossible = write_others(plan, folded, precisions or tuple(Precision), directory)
        for precision, reason in impossible.items():
            if precisions:
                raise UserError(f"{precision} cannot be built: {reason}")
            say(f"{precision}: left out, {reason}")
        models = {
            p: (directory / FILES[p]).read_bytes() for p in Precision if (directory / FILES[p]).exists()
        }
        refused, metrics = compare(plan, models, max_loss, say)
        if refused and precisions:
            raise UserError(
                f"{refused[0]} loses too much: leave it out of --precision, or allow more by --max-loss"
            )
        for precision in refused:
            del models[precision]
            (directory / FILES[precision]).unlink()
        tolerances = _write_probe(plan, models, directory)
        description = describe(
            name,
            version,
            plan,
            folded,
            parity=parity,
            metrics=metrics,
            files=tuple(model_file(p, model, tolerances[p]) for p, model in models.items()),
            probe=(directory / PROBE_FILE).read_bytes(),
            fp32=models[Precision.FP32],
        )
        (directory / DESCRIPTION_FILE).write_text(description.model_dump_json(indent=2) + "\n")
        _write_for_people(plan, description, directory, models[Precision.FP32])
    write_repository_files(Path(out).absolute().parent, description)
    return description


def _write_probe(plan: Plan, models: Models, directory: Path) -> dict[Precision, float]:
    """Write the probe file and return the tolerance of each precision."""
    images = probe_images(plan.splits, *plan.size)
    outputs = {p: predictor_of(model, plan.output)(images) for p, model in models.items()}
    if bad := [p for p, values in outputs.items() if not np.isfinite(values).all()]:
        raise UserError(
            f"{bad[0]} gives numbers that are not finite on the probe: leave it out of --precision"
        )
    (directory / PROBE_FILE).write_bytes(pack_probe(images, outputs))
    found = {p: tolerance(plan.task, p, model, plan.output, images, outputs) for p, model in models.items()}
    for precision, value in found.items():
        if value > MAX_TOLERANCES[plan.task]:
            raise UserError(
                f"{precision} rounds so coarsely that its probe would need a tolerance of {value:g}, and "
                f"{MAX_TOLERANCES[plan.task]:g} is the most that proves anything: leave it out of --precision"
            )
    return found


def _write_for_people(plan: Plan, description: Description, directory: Path, fp32: bytes) -> None:
    """Write the card and its pictures."""
    pictures = []
    if plan.origin.curves:
        shutil.copyfile(plan.origin.curves, directory / CURVES)
        pictures.append(CURVES)
    if plan.origin.finds_road and SAMPLE.is_file():
        predict = predictor_of(fp32, plan.output)
        draw_overlay(lambda images: predict(images)[:, 0], *plan.size, directory / OVERLAY)
        pictures.append(OVERLAY)
    (directory / CARD_FILE).write_text(write_card(description, plan.origin, pictures))

"""Measures the scores of a file through onnxruntime; they are the same scores that training states."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatserve.export.datasets import Framed, Labelled, Split, Splits
from quatserve.service.artifact import Metric, Precision, Task
from quatserve.training.evaluation.road import evaluate_road
from quatserve.training.evaluation.road_metrics import road_mask
from quatserve.training.loop.prediction import Predictor

MAX_LOSS = {Task.CLASSIFICATION: 0.3, Task.SEGMENTATION: 0.005}
LOSS_UNITS = {Task.CLASSIFICATION: "points", Task.SEGMENTATION: "IoU"}
AGREEMENT = "agreement"  # with fp32
MASK_THRESHOLD = 0.5
Answers = NDArray[Any]


def measure(
    predict: Predictor, splits: Splits, precision: Precision, answers: Sequence[Answers]
) -> tuple[Metric, ...]:
    """Return the scores on every reported split, and the agreement with the `answers` of fp32."""
    found = [(split, _scores(predict, split)) for split in splits.reported]
    if precision is not Precision.FP32:
        for split, theirs in zip(splits.agreed, answers, strict=True):
            agreement = agreement_of(theirs, predict(split.images))
            found.append((split, {AGREEMENT: (agreement, len(theirs))}))
    return tuple(
        Metric(
            name=name,
            value=value,
            dataset=splits.dataset,
            split=split.split,
            samples=count,
            precision=precision,
        )
        for split, scores in found
        for name, (value, count) in scores.items()
    )


def answers_to_agree_with(fp32: Predictor, splits: Splits) -> list[Answers]:
    """Return the outputs of fp32 on each split for which agreement is stated."""
    return [fp32(split.images) for split in splits.agreed]


def loss_of(precision: Precision, task: Task, splits: Splits, metrics: tuple[Metric, ...]) -> float:
    """The loss of a precision against fp32, in points of error or in IoU. `metrics` holds those of both.

    On held-out images it is the difference of the scores. On others it is the share of answers that differ
    from fp32: scores on training images mean little, and other images have no labels.
    """
    points = 100 if task is Task.CLASSIFICATION else 1
    if not splits.held_out:
        return points * (1 - _value(metrics, AGREEMENT, splits.comparison, precision))
    name, sign = ("error", 1) if task is Task.CLASSIFICATION else ("iou", -1)
    before, after = (_value(metrics, name, splits.comparison, p) for p in (Precision.FP32, precision))
    return sign * points * (after - before)


def agreement_of(before: Answers, after: Answers) -> float:
    """The share of images, or of pixels of several maps, with the same class; of single maps, masks' IoU."""
    if before.ndim == 2 or before.shape[1] > 1:
        return float(np.mean(before.argmax(1) == after.argmax(1)))
    first, second = road_mask(before, MASK_THRESHOLD), road_mask(after, MASK_THRESHOLD)
    union = np.count_nonzero(first | second)
    return np.count_nonzero(first & second) / union if union else 1.0


def _scores(predict: Predictor, split: Split) -> dict[str, tuple[float, int]]:
    if isinstance(split, Labelled):
        labels = split.data.labels.numpy()
        return {"error": (float(np.mean(predict(split.images).argmax(1) != labels)), len(labels))}
    assert isinstance(split, Framed)
    found = evaluate_road(
        lambda images: predict(images)[:, 0], split.frames, height=split.height, width=split.width
    ).frame_size
    values = {"iou": found.iou, "soft_dice": found.soft_dice, "max_f": found.max_f}
    return {name: (value, len(split.frames)) for name, value in values.items()}


def _value(metrics: tuple[Metric, ...], name: str, split: Split, precision: Precision) -> float:
    return next(m.value for m in metrics if (m.name, m.split, m.precision) == (name, split.split, precision))

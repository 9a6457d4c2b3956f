"""What a file is worth: the same scores that training states, computed through onnxruntime."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatserve.export.datasets import Labelled, Material, Split
from quatserve.service.artifact import Metric, Precision, Task
from quatserve.training.evaluation.road import evaluate_road
from quatserve.training.evaluation.road_metrics import road_mask
from quatserve.training.loop.prediction import Predictor

MAX_LOSS = {Task.CLASSIFICATION: 0.3, Task.SEGMENTATION: 0.005}
LOSS_UNITS = {Task.CLASSIFICATION: "points", Task.SEGMENTATION: "IoU"}
AGREEMENT = "agreement"  # with fp32
Answers = NDArray[Any]


def measure(
    predict: Predictor, material: Material, precision: Precision, answers: Sequence[Answers]
) -> tuple[Metric, ...]:
    """Every score of every split that is reported, and the agreement with the `answers` of fp32."""
    found = [(split, _scores(predict, split)) for split in material.reported]
    if precision is not Precision.FP32:
        for split, theirs in zip(material.agreed, answers, strict=True):
            agreement = _agreement(theirs, predict(split.images), split)
            found.append((split, {AGREEMENT: (agreement, len(theirs))}))
    return tuple(
        Metric(
            name=name,
            value=value,
            dataset=material.dataset,
            split=split.split,
            samples=count,
            precision=precision,
        )
        for split, scores in found
        for name, (value, count) in scores.items()
    )


def answers_to_agree_with(fp32: Predictor, material: Material) -> list[Answers]:
    """What fp32 says of each split that agreement is stated of."""
    return [fp32(split.images) for split in material.agreed]


def loss_of(precision: Precision, material: Material, metrics: tuple[Metric, ...]) -> float:
    """What a precision loses against fp32: points of error, or IoU. `metrics` are those of both.

    On held-out images it is the difference of their scores. On training images, whose scores mean little,
    it is the share of answers that are not those of fp32.
    """
    points = 100 if isinstance(material.comparison, Labelled) else 1
    if not material.held_out:
        return points * (1 - _value(metrics, AGREEMENT, material.comparison, precision))
    name, sign = ("error", 1) if isinstance(material.comparison, Labelled) else ("iou", -1)
    before, after = (_value(metrics, name, material.comparison, p) for p in (Precision.FP32, precision))
    return sign * points * (after - before)


def _scores(predict: Predictor, split: Split) -> dict[str, tuple[float, int]]:
    if isinstance(split, Labelled):
        labels = split.data.labels.numpy()
        return {"error": (float(np.mean(predict(split.images).argmax(1) != labels)), len(labels))}
    found = evaluate_road(predict, split.frames, height=split.height, width=split.width).frame_size
    values = {"iou": found.iou, "soft_dice": found.soft_dice, "max_f": found.max_f}
    return {name: (value, len(split.frames)) for name, value in values.items()}


def _agreement(before: Answers, after: Answers, split: Split) -> float:
    """The share of classes that are the same, or the IoU of both masks."""
    if isinstance(split, Labelled):
        return float(np.mean(before.argmax(1) == after.argmax(1)))
    first, second = road_mask(before, 0.5), road_mask(after, 0.5)
    union = np.count_nonzero(first | second)
    return np.count_nonzero(first & second) / union if union else 1.0


def _value(metrics: tuple[Metric, ...], name: str, split: Split, precision: Precision) -> float:
    return next(m.value for m in metrics if (m.name, m.split, m.precision) == (name, split.split, precision))

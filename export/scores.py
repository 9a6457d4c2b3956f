"""What a file is worth: the same scores that training states, computed through onnxruntime."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.artifact import Metric, Precision, Task
from training.prediction import Predictor
from training.road_evaluation import evaluate_road
from training.road_metrics import road_mask

from .material import Framed, Labelled, Material, Split

MAX_LOSS = {Task.CLASSIFICATION: 0.3, Task.SEGMENTATION: 0.005}
LOSS_UNITS = {Task.CLASSIFICATION: "points", Task.SEGMENTATION: "IoU"}
LEADING = {Task.CLASSIFICATION: "error", Task.SEGMENTATION: "iou"}


def measure(predict: Predictor, material: Material, precision: Precision) -> tuple[Metric, ...]:
    """Every score of every split that is reported."""
    return tuple(
        Metric(
            name=name,
            value=value,
            dataset=material.dataset,
            split=split.split,
            samples=count,
            precision=precision,
        )
        for split in material.reported
        for name, (value, count) in _scores(predict, split).items()
    )


def answers_to_agree_with(fp32: Predictor, material: Material) -> NDArray[Any] | None:
    """What fp32 says of the comparison images, where they have no scores that mean anything."""
    return None if material.held_out else fp32(material.comparison.images)


def loss_of(
    predict: Predictor,
    precision: Precision,
    material: Material,
    metrics: tuple[Metric, ...],
    answers: NDArray[Any] | None,
) -> float:
    """What a precision loses against fp32: points of error, or IoU. `metrics` are those of both.

    On held-out images it is the difference of their scores. On training images, whose scores mean little,
    it is the share of answers that are not those of fp32.
    """
    if answers is not None:
        return _disagreement(answers, predict(material.comparison.images), material.comparison)
    before, after = (_leading(metrics, material.comparison, p) for p in (Precision.FP32, precision))
    return 100 * (after - before) if isinstance(material.comparison, Labelled) else before - after


def _scores(predict: Predictor, split: Split) -> dict[str, tuple[float, int]]:
    if isinstance(split, Labelled):
        labels = split.data.labels.numpy()
        return {"error": (float(np.mean(predict(split.images).argmax(1) != labels)), len(labels))}
    found = evaluate_road(predict, split.frames, height=split.height, width=split.width).frame_size
    values = {"iou": found.iou, "soft_dice": found.soft_dice, "max_f": found.max_f}
    return {name: (value, len(split.frames)) for name, value in values.items()}


def _disagreement(before: NDArray[Any], after: NDArray[Any], split: Split) -> float:
    if isinstance(split, Labelled):
        return 100 * float(np.mean(before.argmax(1) != after.argmax(1)))
    first, second = road_mask(before, 0.5), road_mask(after, 0.5)
    union = np.count_nonzero(first | second)
    return 1 - np.count_nonzero(first & second) / union if union else 0.0


def _leading(metrics: tuple[Metric, ...], split: Split, precision: Precision) -> float:
    name = "iou" if isinstance(split, Framed) else "error"
    return next(m.value for m in metrics if (m.name, m.split, m.precision) == (name, split.split, precision))

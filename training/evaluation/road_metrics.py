"""Metrics of road maps against the ground truth: pure functions of arrays.

A map is uint8, round(255 p). Everything is counted in one table: how many road and how many background pixels
have each of the 256 values. Tables of several frames add up, so every figure is pooled over all valid pixels
of all frames, as the KITTI benchmark pools them, and 256 thresholds cost no more than one.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quatserve.training.data.kitti import IGNORED
from quatserve.training.errors import UserError

VALUES = 256
RECALL_LEVELS = np.arange(11) / 10  # of the 11-point average precision
Mask = NDArray[np.uint8]


@dataclass(frozen=True)
class RoadScores:
    """The IoU is taken at `threshold`; precision to FNR where F is largest, as the benchmark takes them."""

    pixels: int
    threshold: float
    iou: float
    soft_dice: float
    max_f: float
    max_f_threshold: float
    average_precision: float
    precision: float
    recall: float
    fpr: float
    fnr: float


def value_counts(values: Mask, targets: Mask) -> NDArray[np.int64]:
    """(2, 256): pixels of background and of road by value; ignored pixels do not count."""
    return np.stack([np.bincount(values[targets == truth], minlength=VALUES) for truth in (0, 1)])


def first_road_value(threshold: float) -> int:
    """The minimum value of a map that counts as road: the one rule from a probability to a mask."""
    return math.ceil(255 * threshold)


def road_mask(values: Mask, threshold: float) -> NDArray[np.bool_]:
    return values >= first_road_value(threshold)


def road_scores(counts: NDArray[np.int64], threshold: float = 0.5) -> RoadScores:
    """Every figure, from a table of `value_counts`."""
    negatives, positives = counts.sum(1).tolist()
    if not positives:
        raise UserError("the ground truth of these frames has no road: nothing can be measured")
    false, true = counts[:, ::-1].cumsum(1)[:, ::-1]  # pixels called road at thresholds 0, 1, ..., 255
    precision, recall = _ratio(true, true + false), true / positives
    f = 2 * true / (true + false + positives)
    best = int(np.argmax(f))
    chosen = first_road_value(threshold)
    return RoadScores(
        pixels=positives + negatives,
        threshold=threshold,
        iou=float(true[chosen] / (positives + false[chosen])),
        soft_dice=_soft_dice(counts),
        max_f=float(f[best]),
        max_f_threshold=best / 255,
        average_precision=_average_precision(precision, recall),
        precision=float(precision[best]),
        recall=float(recall[best]),
        fpr=float(false[best] / max(negatives, 1)),
        fnr=float(1 - recall[best]),
    )


def frame_iou(values: Mask, targets: Mask, threshold: float = 0.5) -> float:
    """Intersection over union of one frame's road; NaN where neither has any."""
    found, road = road_mask(values, threshold) & (targets != IGNORED), targets == 1
    union = np.count_nonzero(found | road)
    return np.count_nonzero(found & road) / union if union else math.nan


def _soft_dice(counts: NDArray[np.int64]) -> float:
    """2 sum(p g) / (sum(p) + sum(g)), with g = 1 on road."""
    mass = counts @ (np.arange(VALUES) / 255)
    return float(2 * mass[1] / (mass.sum() + counts[1].sum()))


def _average_precision(precision: NDArray[np.float64], recall: NDArray[np.float64]) -> float:
    """The mean over 11 levels of the best precision that reaches such a recall."""
    return float(np.mean([np.max(precision, initial=0, where=recall >= level) for level in RECALL_LEVELS]))


def _ratio(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    """part / whole, or 0 / 0 = 0, as in the benchmark: without road pixels the precision is 0."""
    return np.divide(part, whole, out=np.zeros(part.shape), where=whole != 0)

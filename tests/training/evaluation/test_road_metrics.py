"""Road metrics against their definitions, pixel by pixel and threshold by threshold."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from quatserve.training.data.kitti import IGNORED
from quatserve.training.errors import UserError
from quatserve.training.evaluation.road_metrics import (
    RoadScores,
    first_road_value,
    frame_iou,
    road_mask,
    road_scores,
    value_counts,
)

SHAPE = (5, 7)
maps = arrays(np.uint8, SHAPE)
truths = arrays(np.uint8, SHAPE, elements=st.sampled_from([0, 1, IGNORED]))


def by_definition(values: list[int], targets: list[int], threshold: float) -> RoadScores:
    """The benchmark's definitions in plain Python, on lists."""
    pixels = [(v, t) for v, t in zip(values, targets, strict=True) if t != IGNORED]

    def exact_f(least: int) -> Fraction:
        """2 TP / (2 TP + FP + FN) as a fraction: thresholds that tie really tie, and the first wins."""
        tp = sum(v >= least and t == 1 for v, t in pixels)
        wrong = sum((v >= least) != (t == 1) for v, t in pixels)
        return Fraction(2 * tp, 2 * tp + wrong) if tp else Fraction(0)

    def rates(least: int) -> tuple[float, float, float, float]:
        tp = sum(v >= least and t == 1 for v, t in pixels)
        fp = sum(v >= least and t == 0 for v, t in pixels)
        fn = sum(v < least and t == 1 for v, t in pixels)
        tn = sum(v < least and t == 0 for v, t in pixels)
        precision = tp / (tp + fp) if tp + fp else 0.0
        return precision, tp / (tp + fn), fp / (fp + tn) if fp + tn else 0.0, tp / (tp + fp + fn)

    curve = [rates(least) for least in range(256)]
    best = max(range(256), key=exact_f)
    precision, recall, fpr, _ = curve[best]
    levels = [max(p for p, r, *_ in curve if r >= k / 10) for k in range(11)]
    return RoadScores(
        pixels=len(pixels),
        threshold=threshold,
        iou=rates(math.ceil(255 * threshold))[3],
        soft_dice=2
        * sum(v * t for v, t in pixels)
        / (sum(v for v, _ in pixels) + 255 * sum(t for _, t in pixels)),
        max_f=float(exact_f(best)),
        max_f_threshold=best / 255,
        average_precision=sum(levels) / 11,
        precision=precision,
        recall=recall,
        fpr=fpr,
        fnr=1 - recall,
    )


@given(maps, truths, st.floats(0.01, 0.99))
def test_scores_are_those_of_the_definition(
    values: np.ndarray, targets: np.ndarray, threshold: float
) -> None:
    targets[0, 0] = 1  # without any road there is nothing to measure
    expected = by_definition(values.ravel().tolist(), targets.ravel().tolist(), threshold)
    scores = road_scores(value_counts(values, targets), threshold)
    assert vars(scores) == pytest.approx(vars(expected))


@given(maps, truths, maps, truths)
def test_tables_of_frames_add_up(a: np.ndarray, ta: np.ndarray, b: np.ndarray, tb: np.ndarray) -> None:
    together = value_counts(np.concatenate([a, b]), np.concatenate([ta, tb]))
    assert np.array_equal(value_counts(a, ta) + value_counts(b, tb), together)


def test_a_perfect_map_and_its_opposite() -> None:
    targets = np.array([[1, 1, 0, 0, IGNORED]], np.uint8)
    perfect = road_scores(value_counts(np.array([[255, 255, 0, 0, 7]], np.uint8), targets))
    assert (perfect.iou, perfect.soft_dice, perfect.max_f, perfect.average_precision) == (1, 1, 1, 1)
    opposite = road_scores(value_counts(np.array([[0, 0, 255, 255, 7]], np.uint8), targets))
    assert (opposite.iou, opposite.soft_dice, opposite.average_precision) == (0, 0, 0.5)


@pytest.mark.parametrize(
    ("threshold", "least"), [(0.5, 128), (0.25, 64), (0.26, 67), (0.2, 51), (0.999, 255)]
)
def test_the_threshold_is_a_value_of_the_map(threshold: float, least: int) -> None:
    assert first_road_value(threshold) == least
    assert road_mask(np.array([least - 1, least], np.uint8), threshold).tolist() == [False, True]


def test_frame_iou_leaves_ignored_pixels_out() -> None:
    values = np.array([[200, 200, 0, 200]], np.uint8)
    assert frame_iou(values, np.array([[1, 0, 1, IGNORED]], np.uint8)) == pytest.approx(1 / 3)
    assert math.isnan(frame_iou(values * 0, np.zeros((1, 4), np.uint8)))


def test_frames_without_road_cannot_be_scored() -> None:
    with pytest.raises(UserError, match="no road"):
        road_scores(value_counts(np.zeros((2, 2), np.uint8), np.zeros((2, 2), np.uint8)))

"""Temperature, calibration error and confidence threshold, against their definitions."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from quatserve.export.proof.calibration import (
    BINS,
    RIGHT,
    calibrate,
    confidence_threshold,
    expected_calibration_error,
    fit_temperature,
    softmax,
)


def drawn(count: int = 20_000, classes: int = 10, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and labels drawn from their softmax; then the logits times `scale`."""
    random = np.random.default_rng(0)
    logits = 2 * random.standard_normal((count, classes))
    labels = (softmax(logits).cumsum(1) < random.random((count, 1))).sum(1)
    return scale * logits, labels


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_the_temperature_undoes_what_scaled_the_logits(scale: float) -> None:
    assert fit_temperature(*drawn(scale=scale)) == pytest.approx(scale, rel=0.03)


def test_the_temperature_has_the_least_cross_entropy() -> None:
    logits, labels = drawn(500, scale=2.5)
    found = minimize_scalar(
        lambda t: -log_softmax(logits / t, axis=1)[np.arange(500), labels].mean(), bounds=(0.1, 10)
    )
    assert fit_temperature(logits, labels) == pytest.approx(found.x, rel=1e-4)


def test_the_calibration_error_is_the_mean_gap_over_bins() -> None:
    logits, labels = drawn(3_000, scale=2.0)
    p = softmax(logits)
    confidence, right = p.max(1), p.argmax(1) == labels
    expected = 0.0
    for i in range(BINS):
        inside = (confidence >= i / BINS) & (confidence < (i + 1) / BINS)
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert expected_calibration_error(p, labels) == pytest.approx(expected, abs=1e-3)


def test_certainty_that_is_always_right_has_no_calibration_error() -> None:
    labels = np.arange(10)
    assert expected_calibration_error(np.eye(10), labels) == 0
    assert expected_calibration_error(np.eye(10), (labels + 1) % 10) == 1


def test_calibration_lessens_the_error_of_a_network_that_is_too_sure() -> None:
    found = calibrate(*drawn(scale=3.0))
    assert found.temperature == pytest.approx(3, rel=0.03)
    assert found.error_before > 0.1
    assert found.error_after < 0.02


def test_of_the_images_above_the_threshold_enough_are_right_and_of_any_lower_one_too_few() -> None:
    logits, labels = drawn()
    p = softmax(logits)
    threshold = confidence_threshold(p, labels)
    assert threshold is not None
    confidence, right = p.max(1), p.argmax(1) == labels
    assert right[confidence >= threshold].mean() >= RIGHT
    for lower in np.unique(confidence[confidence < threshold])[::-100]:
        assert right[confidence >= lower].mean() < RIGHT


def test_images_of_one_confidence_stand_or_fall_together() -> None:
    p = np.array([[0.9, 0.1]] * 20 + [[0.6, 0.4]] * 20)
    labels = np.array([0] * 20 + [0] * 18 + [1] * 2)  # 0.95 of all, and all of the surer half
    assert confidence_threshold(p, labels) == 0.6
    labels[:1] = 1
    assert confidence_threshold(p, labels) == 0.9  # 19 of 20
    labels[:2] = 1
    assert confidence_threshold(p, labels) is None  # the first 18 images by chance would not do

"""How far a classifier's probabilities can be believed, and the one number that mends them.

A temperature T divides the logits, which changes no order of answers. It is fitted on images that were held
out of training, by the least cross-entropy: with b = 1 / T the derivative of mean(-log softmax(b z)_y) is
mean(E_p[z] - z_y), which rises with b, so that bisection finds its only zero.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RIGHT = 0.95  # of the images above the confidence threshold
BINS = 15  # of the expected calibration error, of equal width, as most papers have it
Floats = NDArray[np.floating]
Labels = NDArray[np.integer]

_BOUNDS = (1e-2, 1e2)  # of 1 / T: a network whose optimum lies outside is not worth calibrating
_HALVINGS = 60


@dataclass(frozen=True)
class Calibration:
    """What a held-out split says of the probabilities of a classifier."""

    temperature: float
    error_before: float  # expected calibration error
    error_after: float
    confidence_threshold: float | None  # None where no confidence is right often enough


def calibrate(logits: Floats, labels: Labels) -> Calibration:
    """logits (N, classes) in float64, labels (N,)."""
    temperature = fit_temperature(logits, labels)
    before, after = softmax(logits), softmax(logits / temperature)
    return Calibration(
        temperature=temperature,
        error_before=expected_calibration_error(before, labels),
        error_after=expected_calibration_error(after, labels),
        confidence_threshold=confidence_threshold(after, labels),
    )


def fit_temperature(logits: Floats, labels: Labels) -> float:
    def slope(inverse: float) -> float:
        p = softmax(inverse * logits)
        return float(np.mean((p * logits).sum(1) - logits[np.arange(len(labels)), labels]))

    low, high = _BOUNDS
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return 1 / math.sqrt(low * high)


def expected_calibration_error(probabilities: Floats, labels: Labels) -> float:
    """The mean gap between confidence and share of right answers, over bins of confidence."""
    confidence = probabilities.max(1)
    right = probabilities.argmax(1) == labels
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, right - confidence, BINS)
    return float(np.abs(gaps).sum() / len(labels))


def confidence_threshold(probabilities: Floats, labels: Labels) -> float | None:
    """The least confidence such that, of the images at or above it, at least RIGHT are answered rightly."""
    confidence = probabilities.max(1)
    right = probabilities.argmax(1) == labels
    order = np.argsort(-confidence, kind="stable")
    share = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
    last_of_ties = np.append(
        np.diff(confidence[order]) != 0, True
    )  # equal confidences stand or fall together
    good = np.nonzero((share >= RIGHT) & last_of_ties)[0]
    return float(confidence[order[good[-1]]]) if len(good) else None


def softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    found: Floats = powers / powers.sum(1, keepdims=True)
    return found

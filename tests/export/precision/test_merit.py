"""Which precision ships by its own merit: the bound on either side, and what few images are worth."""

import numpy as np
import pytest

from quatserve.export.precision.merit import MAX_CROSS_ENTROPY, MAX_ERROR, Merit, compare


def probabilities(right: np.ndarray) -> np.ndarray:
    """Two classes, the first of which is the label and gets `right`."""
    return np.stack([right, 1 - right], 1)


def test_the_difference_is_paired() -> None:
    """Images that differ a lot among themselves, by the same little in both precisions."""
    right = np.linspace(0.55, 0.999, 2_000)
    labels = np.zeros(2_000, int)
    found = compare(probabilities(right), probabilities(right * np.exp(-0.004)), labels)
    assert found.cross_entropy == pytest.approx(0.004)
    assert found.upper == pytest.approx(0.004, abs=1e-9)
    assert found.error == 0
    assert found.ships


def test_the_limit_is_that_of_the_mean() -> None:
    random = np.random.default_rng(0)
    difference = random.normal(0.002, 0.1, 400)
    right = np.full(400, 0.7)
    found = compare(probabilities(right), probabilities(right * np.exp(-difference)), np.zeros(400, int))
    assert found.upper - found.cross_entropy == pytest.approx(1.645 * difference.std(ddof=1) / 20)
    assert not Merit(400, found.cross_entropy, 0.0101, 0).ships


@pytest.mark.parametrize(("beyond", "ships"), [(0.0, True), (1e-6, False)])
def test_each_bound_holds_from_either_side(beyond: float, ships: bool) -> None:
    assert Merit(2_000, 0, MAX_CROSS_ENTROPY + beyond, 0).ships is ships
    assert Merit(2_000, 0, 0, MAX_ERROR + beyond).ships is ships


def test_a_better_precision_ships() -> None:
    right = np.full(100, 0.8)
    found = compare(probabilities(right), probabilities(right + 0.1), np.zeros(100, int))
    assert found.cross_entropy < 0
    assert found.ships


def test_numbers_that_are_not_finite_do_not_ship() -> None:
    assert not Merit(10, float("nan"), float("nan"), 0).ships


def test_it_says_figures_and_bounds() -> None:
    assert str(Merit(2_000, 0.0012, 0.0031, -0.001)) == (
        "cross-entropy +0.0012 against fp32, at most +0.0031 (0.01 allowed), error -0.10 points "
        "(0.5 allowed), 2,000 held-out images"
    )

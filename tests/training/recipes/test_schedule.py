"""Learning rates."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quatserve.training.recipes.schedule import OneCycle, Steps


@given(st.floats(1e-4, 1), st.floats(0.05, 0.9), st.integers(1, 200))
def test_one_cycle_rises_to_its_peak_and_falls_to_nothing(peak: float, warm_up: float, epochs: int) -> None:
    schedule = OneCycle(peak=peak, warm_up=warm_up)
    rates = [schedule.rate(epochs * i / 400, epochs) for i in range(401)]
    top = rates.index(max(rates))
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) == pytest.approx(peak, rel=0.06)
    assert schedule.rate(warm_up * epochs, epochs) == pytest.approx(peak)
    assert rates[0] == pytest.approx(0.04 * peak)
    assert rates[-1] == pytest.approx(0, abs=1e-9)


def test_half_way_down_the_rate_is_half() -> None:
    assert OneCycle(peak=0.2, warm_up=0.5).rate(75, 100) == pytest.approx(0.1)


@pytest.mark.parametrize(("peak", "warm_up"), [(0, 0.1), (-1, 0.1), (math.nan, 0.1), (0.1, 0), (0.1, 1)])
def test_an_impossible_cycle_is_refused(peak: float, warm_up: float) -> None:
    with pytest.raises(ValueError, match=r"(greater than 0|less than 1)"):
        OneCycle(peak=peak, warm_up=warm_up)


def test_steps_hold_until_the_next() -> None:
    steps = Steps(rates=((0, 0.01), (10, 0.1), (120, 0.01)))
    assert [steps.rate(epoch, 200) for epoch in (0, 9.999, 10, 119.5, 120, 300)] == [
        0.01,
        0.01,
        0.1,
        0.1,
        0.01,
        0.01,
    ]


@pytest.mark.parametrize("rates", [(), ((1, 0.1),), ((0, 0.1), (0, 0.2)), ((0, 0.1), (9, 0.2), (5, 0.1))])
def test_steps_must_rise_from_the_beginning(rates: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ValueError, match="must start at epoch 0 and rise"):
        Steps(rates=rates)

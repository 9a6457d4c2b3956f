"""Learning rates as functions of how far the run is."""

import math
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OneCycle:
    """Straight up to `peak`, then down a half cosine to nothing."""

    kind: Literal["OneCycle"] = "OneCycle"
    peak: Annotated[float, Field(gt=0)]
    warm_up: Annotated[float, Field(gt=0, lt=1)] = 0.15  # of the whole run

    @property
    def highest(self) -> float:
        return self.peak

    def rate(self, epoch: float, epochs: int) -> float:
        """The rate at `epoch`, a fraction counted from 0, of a run of `epochs`."""
        progress = epoch / epochs
        if progress < self.warm_up:
            return self.peak * (0.04 + 0.96 * progress / self.warm_up)
        return self.peak * 0.5 * (1 + math.cos(math.pi * (progress - self.warm_up) / (1 - self.warm_up)))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Steps:
    """Constant from each named epoch on: ((0, 0.01), (10, 0.1), ...)."""

    kind: Literal["Steps"] = "Steps"
    rates: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.rates]
        if not starts or starts[0] != 0 or starts != sorted(set(starts)):
            raise ValueError(f"steps must start at epoch 0 and rise, not {starts}")

    @property
    def highest(self) -> float:
        return max(rate for _, rate in self.rates)

    def rate(self, epoch: float, epochs: int) -> float:  # noqa: ARG002 - the same call for every schedule
        return next(rate for start, rate in reversed(self.rates) if epoch >= start)


Schedule = Annotated[OneCycle | Steps, Field(discriminator="kind")]

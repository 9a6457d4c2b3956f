"""Every attack, at the length of `make stress` and at that of the test suite."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.service.harness import REPOSITORY
from tests.stress import (
    api_schema,
    endings,
    faulty_models,
    leaving_clients,
    mutated_images,
    overload,
    slow_clients,
    soak,
    swaps,
)
from tests.stress.record import Record


@dataclass(frozen=True)
class Attack:
    run: Callable[..., Record]  # takes an empty folder, and one of these:
    long: dict[str, Any]
    short: dict[str, Any]


ATTACKS = {
    "mutated images": Attack(
        mutated_images.attack, {"classify": 5000, "segment": 500}, {"classify": 300, "segment": 60}
    ),
    "schema": Attack(api_schema.attack, {"examples": 100}, {"examples": 1}),
    "overload": Attack(overload.attack, {"seconds": 60}, {"seconds": 2}),
    "leaving clients": Attack(leaving_clients.attack, {"seconds": 25}, {"seconds": 2}),
    "slow clients": Attack(
        slow_clients.attack,
        {"each": 10, "idle": 1000, "timeout_s": 4},
        {"each": 2, "idle": 100, "timeout_s": 2},
    ),
    "SIGTERM": Attack(endings.terminate, {"times": 5}, {"times": 1}),
    "kill -9": Attack(endings.kill, {"times": 3, "models_dir": REPOSITORY / "models"}, {"times": 1}),
    "swaps": Attack(swaps.attack, {"swaps": 50}, {"swaps": 10}),
    "faulty models": Attack(faulty_models.attack, {"times": 50}, {"times": 2}),
    "soak": Attack(soak.attack, {"requests": 200_000, "first": 10_000}, {"requests": 2000, "first": 1000}),
}

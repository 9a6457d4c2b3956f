"""`quatserve` with recipes that train within a second, and with accidents on demand.

    python -m tests.training.tiny_command fit tiny-cifar --data DIR --out RUN --compile off

ACCIDENT = "kill 1 2" ends the process in the third step of the second epoch, "pause 1 2" waits there for a
signal (and says so by making the file named by PAUSED); "pause-saving 1" waits in the middle of writing the
second state. An accident happens to the last process of a machine only, and only once: not after torchrun's
restart, and not where PAUSED exists already.
LATE = "1" makes that rank come after the others when torchrun has restarted them.
OWN_DISK = "1" gives all ranks but the first a run directory of their own.
"""

import dataclasses
import operator
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from quatserve.training import recipes
from quatserve.training.commands.main import main
from quatserve.training.data import cifar
from quatserve.training.loop import run
from quatserve.training.loop.batches import Batch, Epoch
from quatserve.training.loop.labelled import LabelledData
from quatserve.training.networks.residual import NetworkConfig
from quatserve.training.recipes.schedule import OneCycle
from quatserve.training.recipes.schema import Classification, Recipe
from tests.training.tiny_data import road_recipe, write_cifar, write_frames

TINY_CIFAR = dataclasses.replace(cifar.CIFAR10, records_per_file={"train": 9, "test": 4})  # 45 images


def tiny_recipes() -> dict[str, Recipe]:
    """A classifier that holds out 5 of 45 images (five steps of 8), a taught one, and a road network."""
    classifier = Recipe(
        name="tiny-cifar",
        summary="for tests",
        dataset="cifar10",
        network=NetworkConfig(depth=1, width=8),
        task=Classification(),
        epochs=3,
        batch_size=8,
        schedule=OneCycle(peak=0.01),  # gentle: rounding must not grow into another run
        weight_decay=1e-4,
        kernel_rate=0.06,
        ema_decay=0.9,
        holdout=5,
    )
    return {
        "tiny-cifar": classifier,
        "tiny-taught": dataclasses.replace(classifier, name="tiny-taught", distil=0.9),
        "tiny-road": road_recipe(name="tiny-road", epochs=2, batch_size=4),
    }


def install_tiny_recipes(set_item: Callable[[Any, str, Any], None] = operator.setitem) -> None:
    set_item(cifar.LAYOUTS, "cifar10", TINY_CIFAR)
    for name, recipe in tiny_recipes().items():
        set_item(recipes.RECIPES, name, partial(dataclasses.replace, recipe))


def write_tiny_data(data: Path) -> None:
    write_cifar(data, TINY_CIFAR)
    write_frames(data, each=4)


def interrupt_at(step: int, set_attribute: Callable[[Any, str, Any], None]) -> None:
    """Ctrl-C in the loss of this step, counted from now on."""
    quiet, seen = LabelledData.loss, iter(range(1000))

    def interrupted(*given: Any) -> Any:
        if next(seen) == step:
            raise KeyboardInterrupt
        return quiet(*given)

    set_attribute(LabelledData, "loss", interrupted)


def _prepare_accident(kind: str, epoch: int, step: int = 0) -> None:
    def happen() -> None:
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        Path(os.environ["PAUSED"]).touch()
        time.sleep(600)

    def troubled(data: LabelledData, number: int, seed: int) -> Epoch:
        steps, quiet = undisturbed(data, number, seed)

        def batches() -> Iterator[Batch]:
            for i, batch in enumerate(quiet):
                if (number, i) == (epoch, step):
                    happen()
                yield batch

        return Epoch(steps, batches())

    def troubled_replace(part: Path, path: Path) -> Path:
        if path.name == run.STATE and len(run.read_metrics(path.parent)) > epoch:
            happen()
        return undisturbed_replace(part, path)

    undisturbed, undisturbed_replace = LabelledData.epoch, Path.replace
    if kind == "pause-saving":
        Path.replace = troubled_replace  # type: ignore[assignment, method-assign]
    else:
        LabelledData.epoch = troubled  # type: ignore[assignment, method-assign]


def _late(seconds: float) -> None:
    """The last rank comes late to the run directory: the first has written into it by then."""
    prompt = run.new_config

    def new_config(
        recipe: Recipe, seed: int, start: Path | None = None, teacher: Path | None = None
    ) -> run.RunConfig:
        time.sleep(seconds)
        return prompt(recipe, seed, start, teacher)

    run.new_config = new_config


def _number(variable: str, default: int) -> int:
    return int(os.environ.get(variable, default))


if __name__ == "__main__":
    torch.set_num_threads(1)
    install_tiny_recipes()
    rank, restarted = _number("RANK", 0), _number("TORCHELASTIC_RESTART_COUNT", 0) > 0
    if rank > 0:
        _late(1.0)
    if rank > 0 and "OWN_DISK" in os.environ:
        sys.argv[sys.argv.index("--out") + 1] += "-own"
    if restarted and str(rank) == os.environ.get("LATE"):
        time.sleep(2.0)
    last = _number("LOCAL_RANK", 0) == _number("LOCAL_WORLD_SIZE", 1) - 1
    happened = restarted or ("PAUSED" in os.environ and Path(os.environ["PAUSED"]).exists())
    if "ACCIDENT" in os.environ and last and not happened:
        kind, *where = os.environ["ACCIDENT"].split()
        _prepare_accident(kind, *map(int, where))
    sys.exit(main())

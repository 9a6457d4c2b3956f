"""Train a recipe into a run directory.

The run can be stopped at any time, by Ctrl-C or a kill: --resume goes on from the last finished epoch and, on
a CPU of the same kind with as many threads and the same --compile, gives exactly the run that was never
stopped.
"""

import argparse
import dataclasses
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from quatserve.training.commands.arguments import (
    MAX_SEED,
    chosen_device,
    data_argument,
    device_argument,
    whole_number,
)
from quatserve.training.errors import UserError

NAME = "fit"
EXAMPLES = """examples:
  quatserve fit cifar10-quaternion --data data --out runs/mine
  quatserve fit cifar10-quaternion --data data --out runs/mine --resume
  quatserve fit kitti-road-quaternion --data data --out runs/road --epochs 20 --seed 1
  quatserve fit cifar10-quaternion --data data --out runs/longer --from runs/mine
  quatserve fit cifar10-quaternion --data data --out runs/b --teacher runs/cifar10-teacher
  torchrun --nproc-per-node 2 -m quatserve fit cifar10-quaternion --data data --out runs/mine"""
MAX_EPOCHS = 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="its name; `quatserve recipes` lists them")
    data_argument(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="run directory to write")
    parser.add_argument("--resume", action="store_true", help="go on from the last finished epoch of RUN")
    parser.add_argument(
        "--from",
        type=Path,
        metavar="RUN",
        dest="start",
        help="begin with the weights of this finished run, not with random ones; where it was trained for "
        "another task or other classes, with all but its head's",
    )
    parser.add_argument(
        "--teacher",
        type=Path,
        metavar="RUN",
        help="the finished run of the same classes that teaches; for recipes with a teacher, which find "
        "their own in runs/ without this",
    )
    parser.add_argument(
        "--epochs",
        type=whole_number(1, MAX_EPOCHS),
        metavar="N",
        help="instead of the recipe's number; the rates of a paper-* recipe keep their epochs, and may be "
        "cut off",
    )
    parser.add_argument(
        "--seed",
        type=whole_number(0, MAX_SEED),
        default=0,
        metavar="N",
        help="of every random number; default: 0",
    )
    device_argument(parser)
    parser.add_argument(
        "--compile",
        choices=("auto", "on", "off"),
        default="auto",
        help="compile the training step; default: auto, where g++ (or $CXX) and Python.h are found",
    )


def run(options: argparse.Namespace) -> None:
    options.after_stop = ": --resume goes on from the last finished epoch"
    from quatserve.training.loop.fit import fit
    from quatserve.training.loop.ranks import joined_ranks
    from quatserve.training.loop.run import find_teacher
    from quatserve.training.recipes import find_recipe

    recipe = find_recipe(options.recipe)
    if options.epochs is not None:
        recipe = dataclasses.replace(recipe, epochs=options.epochs)
    teacher = options.teacher
    if teacher is None and recipe.teacher:
        teacher = find_teacher(recipe)
    device = chosen_device(options.device)
    with joined_ranks(device) as ranks:
        fit(
            recipe,
            options.data,
            options.out,
            seed=options.seed,
            device=device,
            compiled=_compiled(options.compile),
            resume=options.resume,
            ranks=ranks,
            start=options.start,
            teacher=teacher,
        )


def _compiled(choice: str) -> bool:
    if choice == "off":
        return False
    missing = _missing_for_compiling()
    if missing and choice == "on":
        raise UserError(f"--compile on: no {missing} found; install it, or use --compile off")
    if missing:
        print(f"no {missing} found: training goes on uncompiled, more slowly", file=sys.stderr)
    return not missing


def _missing_for_compiling() -> str:
    if not shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")):
        return "C++ compiler"
    headers = Path(sysconfig.get_path("include"), "Python.h")  # Debian has them in a package of their own
    return "" if headers.exists() else "Python.h (Debian: python3-dev)"

"""Train a recipe into a run directory.

With a recipe named `folder-*`, DIR holds one folder for each class, with images of any size in JPEG, PNG,
WebP or BMP (names that begin with a dot are left out). They are decoded once, by all cores, into a cache.
RUN/images.tsv lists them, with those held out for validation: 15 percent of each class, by the digests of
their names, so the same in every run. An image is skipped, and named there, if it cannot be read, if its
shorter side would be enlarged more than 4 times, or if another has the same bytes (one of a class is kept,
and none where it is in two classes). A class without an image to train on is refused.

With a recipe named `masks-*`, DIR holds images/NAME.* and masks/NAME.png of the same size: 0 and 255 (or 0
and 1) for one class; for several, the numbers of the lines of DIR/classes.txt, 0 for background and 255
for what does not count. An image without a mask is skipped; a mask without an image, of another size or with
another value is refused. 15 percent of the images are held out.

A batch of k times the recipe's images takes sqrt(k) times the recipe's rate, unless --lr is given.

The run can be stopped at any time, by Ctrl-C or a kill: --resume goes on from the last finished epoch and, on
a CPU of the same kind with as many threads and the same --compile, gives exactly the run that was never
stopped.
"""

import argparse
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from quatserve.training.commands.arguments import (
    MAX_SEED,
    chosen_device,
    data_argument,
    device_argument,
    size,
    whole_number,
)
from quatserve.training.errors import UserError

if TYPE_CHECKING:
    from quatserve.training.recipes.schema import Recipe

NAME = "fit"
EXAMPLES = """examples:
  quatserve fit cifar10-quaternion --data data --out runs/mine
  quatserve fit cifar10-quaternion --data data --out runs/mine --resume
  quatserve fit kitti-road-quaternion --data data --out runs/road --epochs 20 --seed 1
  quatserve fit cifar10-quaternion --data data --out runs/longer --from runs/mine
  quatserve fit folder-quaternion --data photos --out runs/photos --size 128 --licence CC-BY-4.0
  quatserve fit folder-quaternion --data photos --out runs/b --stem-stride 2 --from runs/cifar10-quaternion
  quatserve fit folder-real --data photos --out runs/c --batch-size 32 --set task.crop=0.6
  quatserve fit cifar10-quaternion --data data --out runs/b --teacher runs/cifar10-teacher
  torchrun --nproc-per-node 2 -m quatserve fit cifar10-quaternion --data data --out runs/mine"""
MAX_EPOCHS = 100_000
MAX_COUNT = 65_536


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
    _recipe_arguments(parser)
    parser.add_argument("--licence", default="", metavar="NAME", help="of your images; kept with the run")
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="where your images are kept decoded; default: .image-cache beside RUN, shared by the runs there",
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


def _recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """What changes the recipe. Bounds are those of its schema, but for the shape of what is typed."""
    count = whole_number(1, MAX_COUNT)
    parser.add_argument("--size", type=size, metavar="N", help="of the network's input: N, or HEIGHTxWIDTH")
    parser.add_argument("--width", type=count, metavar="N", help="real channels of the network's first stage")
    parser.add_argument("--depth", type=count, metavar="N", help="blocks of the network's first stage")
    parser.add_argument(
        "--stem-stride",
        type=int,
        choices=(1, 2, 4),
        help="by how much the network's first convolution reduces a photograph",
    )
    parser.add_argument("--batch-size", type=count, metavar="N", help="images in one step, of all processes")
    parser.add_argument("--lr", type=float, metavar="RATE", help="the highest rate of the schedule")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any field of the recipe, as `quatserve recipes --json` names it: epochs, task.crop, "
        "network.dilations; may be repeated",
    )


def _recipe(options: argparse.Namespace) -> "Recipe":
    """The recipe as the options change it, with as many classes as there are folders."""
    from quatserve.training.loop.sources import adapted
    from quatserve.training.recipes import find_recipe
    from quatserve.training.recipes.changes import changed, parse_assignment

    height, width = options.size or (None, None)
    changes = {
        "height": height,
        "width": width,
        "network.width": options.width,
        "network.depth": options.depth,
        "network.stem_stride": options.stem_stride,
        "epochs": options.epochs,
        "batch_size": options.batch_size,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    given |= dict(map(parse_assignment, options.set))
    return adapted(changed(find_recipe(options.recipe), given, rate=options.lr), options.data)


def run(options: argparse.Namespace) -> None:
    options.after_stop = ": --resume goes on from the last finished epoch"
    from quatserve.training.loop.fit import fit
    from quatserve.training.loop.ranks import joined_ranks
    from quatserve.training.loop.run import find_teacher

    recipe = _recipe(options)
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
            cache=options.cache,
            licence=options.licence,
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

"""python -m training: build, train and evaluate hypercomplex networks."""

import argparse
import dataclasses
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from .errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except UserError as error:
        if options.debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped: --resume goes on from the last finished epoch", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_fit(commands)
    return parser


def _add_fit(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "fit", help="train a recipe", description="Train a recipe into a run directory."
    )
    parser.add_argument("recipe", help="its name; `python -m training recipes` lists them")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="where the data sets are")
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="run directory to write")
    parser.add_argument("--resume", action="store_true", help="go on from the last finished epoch of RUN")
    parser.add_argument("--epochs", type=int, metavar="N", help="instead of the recipe's number")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--compile", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.set_defaults(command=_fit)


def _fit(options: argparse.Namespace) -> None:
    from .fit import fit
    from .ranks import joined_ranks
    from .recipes import find_recipe

    recipe = find_recipe(options.recipe)
    if options.epochs is not None:
        recipe = dataclasses.replace(recipe, epochs=options.epochs)
    device = _device(options.device)
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
        )


def _device(choice: str):  # type: ignore[no-untyped-def]
    import torch

    if choice == "cuda" and not torch.cuda.is_available():
        raise UserError("no CUDA device is usable here: use --device cpu, or install a CUDA build of torch")
    if choice == "cuda" or (choice == "auto" and torch.cuda.is_available()):
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def _compiled(choice: str) -> bool:
    if choice != "auto":
        return choice == "on"
    if os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++"):
        return True
    print("no C++ compiler found: training goes on uncompiled, more slowly", file=sys.stderr)
    return False


if __name__ == "__main__":
    from .allocator import keep_memory

    keep_memory("training")
    sys.exit(main())

"""What the commands' arguments have in common: how they are read, and refused on one line."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from quatserve.training.errors import UserError

if TYPE_CHECKING:
    import torch

MAX_SEED = 2**31 - 1
MIN_SIDE, MAX_SIDE = 8, 2048


class Parser(argparse.ArgumentParser):
    """One line for a mistake, a shortened flag included, and help that keeps its line breaks."""

    def __init__(self, **settings: Any):
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=formatter, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see `{self.prog} --help`)\n")


def debug_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def data_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="the directory of the data sets"
    )


def device_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="default: auto, a GPU where there is one",
    )


def json_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for programs")


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """A type for argparse: a whole number within bounds."""

    def read(text: str) -> int:
        if not (text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most:,}")
        return int(text)

    return read


def size(text: str) -> tuple[int, int]:
    """A type for argparse: a side in pixels, or HEIGHTxWIDTH."""
    sides = text.split("x")
    if len(sides) > 2 or not all(side.isdecimal() and MIN_SIDE <= int(side) <= MAX_SIDE for side in sides):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size: give pixels from {MIN_SIDE} to {MAX_SIDE:,}, as 128 or as 96x320"
        )
    return int(sides[0]), int(sides[-1])


def fraction(text: str) -> float:
    """A type for argparse: a number between 0 and 1, both excluded."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and 1")
    return value


def chosen_device(choice: str) -> "torch.device":
    import torch

    if choice == "cuda" and not torch.cuda.is_available():
        raise UserError("no CUDA device is usable here: use --device cpu, or install a CUDA build of torch")
    if choice == "cuda" or (choice == "auto" and torch.cuda.is_available()):
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")

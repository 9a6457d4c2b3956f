"""The arguments of `quatserve classify` and `quatserve segment`."""

import argparse
from pathlib import Path

from quatserve.service.command_line import CommandParser
from quatserve.service.imaging.render import DEFAULT_THRESHOLD, Output

SHARED_SETTINGS = (
    "models_dir",
    "device",
    "precision",
    "threads",
    "max_batch",
    "max_batch_s",
    "max_image_pixels",
    "gpu_memory_bytes",
)
EPILOG = "A second run continues where the first stopped. Bad files are reported and skipped; exit code 1."


def classify_parser() -> CommandParser:
    parser = _parser("classify", "Write the classes of each image into a table.")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="results.csv or results.jsonl; appended to"
    )
    parser.add_argument(
        "--top-k", type=_count, default=1, metavar="N", help="classes per image (default: %(default)s)"
    )
    return parser


def segment_parser() -> CommandParser:
    parser = _parser("segment", "Write a picture of the road in each image.")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for NAME-mask.png and the like"
    )
    parser.add_argument("--output", choices=list(Output), default=Output.MASK, help="default: %(default)s")
    parser.add_argument(
        "--threshold",
        type=_threshold,
        default=DEFAULT_THRESHOLD,
        metavar="P",
        help="a pixel is road from this probability on (default: %(default)s)",
    )
    return parser


def _parser(command: str, description: str) -> CommandParser:
    parser = CommandParser(prog=f"quatserve {command}", description=description, epilog=EPILOG)
    parser.add_argument("paths", nargs="+", metavar="PATH", help="image, folder, or - for a list on stdin")
    parser.add_argument("--model", help="name of the model, if several could do it")
    parser.add_settings(SHARED_SETTINGS)
    return parser


def _threshold(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value

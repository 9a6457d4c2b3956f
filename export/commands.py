"""The commands `quatserve build`, `inspect` and `verify`."""

import argparse
import json
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from quatserve.service.artifact import Precision
from quatserve.service.errors import ArtifactError
from quatserve.training.commands.arguments import Parser, debug_argument, json_argument
from quatserve.training.errors import UserError

EXAMPLES = """examples:
  quatserve build runs/mine --data data --out models/mine/1
  quatserve inspect models/mine/1
  quatserve verify models/*/*

`quatserve COMMAND --help` describes each."""
BUILD = """Fold a finished run, prove that the result equals the trained network, and write the artifact.

The fp32 file is compared with the unfolded network in float64. fp16 (for GPUs) and int8 (for CPUs, calibrated
on training images) are compared with fp32, on held-out images if the recipe has any. A precision that loses
too much is left out. The artifact is written atomically."""
INSPECT = """Show an artifact: parameters and bytes before and after folding, operators, scores."""
VERIFY = """Check artifacts: digests, operators, and the outputs of the probe on this machine."""


def main(arguments: Sequence[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, _stop)
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (UserError, ArtifactError, OSError) as error:
        if options.debug:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped: the unfinished artifact was removed", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="quatserve", description=__doc__, epilog=EXAMPLES)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_build(commands.add_parser("build", help="write the artifact of a run", description=BUILD))
    _add_inspect(commands.add_parser("inspect", help="show what is in an artifact", description=INSPECT))
    _add_verify(commands.add_parser("verify", help="check artifacts", description=VERIFY))
    return parser


def _add_build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_directory", type=Path, metavar="RUN", help="finished run directory of `quatserve fit`"
    )
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="DIR",
        help="directory of the data sets: to calibrate, compare and score",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="models/NAME/VERSION", help="artifact to write"
    )
    parser.add_argument(
        "--precision",
        type=_precisions,
        metavar="LIST",
        help="comma-separated: fp32 and any of fp16, int8; default: all that lose at most --max-loss",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing artifact")
    parser.add_argument(
        "--max-loss",
        type=_loss,
        metavar="X",
        help="maximum loss of fp16 and int8 against fp32 on held-out images: points of error (default 0.3), "
        "for road IoU (default 0.005). If nothing was held out: percent of training images with another "
        "answer, for road 1 - IoU of the two masks",
    )
    debug_argument(parser)
    parser.set_defaults(run=_build)


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, metavar="ARTIFACT", help="as models/NAME/VERSION")
    json_argument(parser)
    debug_argument(parser)
    parser.set_defaults(run=_inspect)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifacts", type=Path, nargs="+", metavar="ARTIFACT", help="as models/NAME/VERSION")
    debug_argument(parser)
    parser.set_defaults(run=_verify)


def _precisions(text: str) -> tuple[Precision, ...]:
    names = [part.strip() for part in text.split(",")]
    if unknown := [name for name in names if name not in set(Precision)]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not a precision: use fp32, fp16 and int8")
    if Precision.FP32 not in names:
        raise argparse.ArgumentTypeError("fp32 is required: the others are compared with it")
    return tuple(precision for precision in Precision if precision in names)


def _loss(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 upwards")
    return value


def _build(options: argparse.Namespace) -> int:
    from quatserve.export.artifact.from_run import build_run
    from quatserve.export.artifact.inspection import inspect, report

    build_run(
        options.run_directory,
        options.data,
        options.out,
        options.precision,
        force=options.force,
        max_loss=options.max_loss,
        say=_say,
    )
    print(report(inspect(options.out.absolute())))
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _inspect(options: argparse.Namespace) -> int:
    from quatserve.export.artifact.inspection import inspect, report

    found = inspect(options.artifact.absolute())
    print(json.dumps(found, indent=2) if options.json else report(found))
    return 0


def _verify(options: argparse.Namespace) -> int:
    from quatserve.export.proof.verify import verify_all

    good, bad = verify_all(options.artifacts)
    for line in good:
        print(line)
    for line in bad:
        print(f"error: {line}", file=sys.stderr)
    return 2 if bad else 0


def _stop(*_: object) -> None:
    raise KeyboardInterrupt  # on SIGTERM a build must clean up

"""quatserve: train hypercomplex networks, and measure what they are worth."""

import argparse
import sys
import traceback
from collections.abc import Sequence

from quatserve.training.commands import COMMANDS
from quatserve.training.commands.arguments import Parser, debug_argument
from quatserve.training.errors import UserError

EXAMPLES = """examples:
  quatserve download cifar10 --out data
  quatserve recipes
  quatserve fit cifar10-quaternion --data data --out runs/mine
  quatserve evaluate runs/mine --data data
  torchrun --nproc-per-node 2 -m quatserve fit cifar10-quaternion --data data --out runs/mine

`quatserve COMMAND --help` says more about each."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = argument_parser().parse_args(arguments)
    try:
        options.run(options)
    except (UserError, OSError) as error:
        if options.debug:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"stopped{options.after_stop}", file=sys.stderr)
        return 130
    return 0


def argument_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="quatserve", description=__doc__, epilog=EXAMPLES)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        text = (command.__doc__ or "").strip()
        summary = text.partition(".")[0]
        sub = commands.add_parser(
            command.NAME,
            help=summary[0].lower() + summary[1:],
            description=text,
            epilog=command.EXAMPLES,
        )
        command.add_arguments(sub)
        debug_argument(sub)
        sub.set_defaults(run=command.run, after_stop="")
    return parser

"""python -m training: train hypercomplex networks, and measure what they are worth."""

import argparse
import sys
import traceback
from collections.abc import Sequence

from .commands import COMMANDS
from .commands.arguments import Parser, debug_argument
from .errors import UserError

EXAMPLES = """examples:
  python -m training download cifar10 --out data
  python -m training recipes
  python -m training fit cifar10-quaternion --data data --out runs/mine
  python -m training evaluate runs/mine --data data
  torchrun --nproc-per-node 2 -m training fit cifar10-quaternion --data data --out runs/mine

`python -m training COMMAND --help` says more about each."""


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
    parser = Parser(prog="python -m training", description=__doc__, epilog=EXAMPLES)
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


if __name__ == "__main__":
    if sys.argv[1:2] == ["fit"]:
        from .allocator import keep_memory

        keep_memory("training")
    sys.exit(main())

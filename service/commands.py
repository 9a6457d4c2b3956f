"""The command `quatserve serve`."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence

from quatserve.service.command_line import CommandParser, run, settings_from
from quatserve.service.settings import Settings
from quatserve.service.telemetry import logs

DESCRIPTION = "Serve the folded networks of a models directory over HTTP."
EPILOG = """Every flag is also an environment variable; the flag wins. SIGHUP rescans the models directory.
`quatserve classify` and `quatserve segment` work through files without a server."""


def main(words: Sequence[str]) -> int:
    return run(_serve, words[1:])


def parse(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Settings:
    parser = CommandParser(
        prog="quatserve serve", usage="%(prog)s [--SETTING VALUE]...", description=DESCRIPTION, epilog=EPILOG
    )
    parser.add_settings()
    return settings_from(parser.parse_args(arguments), environment)


def _serve(arguments: Sequence[str]) -> int:
    settings = parse(arguments)
    from quatserve.service.web.address import check_address

    check_address(settings.host, settings.port)
    logs.configure(settings.log_level, settings.log_format)
    _exit_on_signals()
    from quatserve.service.app import create_app  # slow to import: a bad setting is reported before
    from quatserve.service.web.server import exit_stuck, serve

    serve(create_app(settings, on_stuck=exit_stuck), settings)
    return 0


def _exit_on_signals() -> None:
    """While the models load there is no accepted work: exit at once, and ignore SIGHUP."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

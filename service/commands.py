"""`quatserve serve`, `classify` and `segment`: from words to an exit code."""

import signal
import sys
import traceback
from collections.abc import Callable, Sequence

from quatserve.service.errors import (
    AddressError,
    ArtifactError,
    DeviceUnavailableError,
    NothingToServeError,
    SettingsError,
)
from quatserve.service.settings import parse
from quatserve.service.telemetry import logs
from quatserve.service.web.address import check_address

EXIT_START, EXIT_SETTINGS = 1, 2
EXIT_INTERRUPTED = 128 + signal.SIGINT
BULK = ("classify", "segment")
EXPLAINED: tuple[type[Exception], ...] = (
    SettingsError,
    AddressError,
    NothingToServeError,
    DeviceUnavailableError,
    ArtifactError,
)


def explained(
    command: Callable[[Sequence[str]], int],
    arguments: Sequence[str],
    faults: tuple[type[Exception], ...] = EXPLAINED,
) -> int:
    """Run a command, or say in one line why it cannot be."""
    try:
        return command(arguments)
    except faults as error:
        if "--debug" in arguments:
            traceback.print_exc()
        print(f"service: {error}", file=sys.stderr)
        return EXIT_SETTINGS if isinstance(error, SettingsError) else EXIT_START


def serve_command(arguments: Sequence[str]) -> int:
    settings = parse(arguments)
    check_address(settings.host, settings.port)
    logs.configure(settings.log_level, settings.log_format)
    _expect_signals()
    from quatserve.service.app import create_app  # after the settings: a typing mistake is told at once
    from quatserve.service.web.server import exit_stuck, serve

    serve(create_app(settings, on_stuck=exit_stuck), settings)
    return 0


def bulk_command(arguments: Sequence[str]) -> int:
    from quatserve.service.bulk import commands

    try:
        return commands.run(arguments[0], arguments[1:])
    except KeyboardInterrupt:
        print("service: stopped; the same command goes on from here", file=sys.stderr)
        return EXIT_INTERRUPTED


def _expect_signals() -> None:
    """While the models load: nothing is accepted yet, so it just ends, and SIGHUP has nothing to add."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def main(words: Sequence[str]) -> int:
    if words[0] in BULK:
        return explained(bulk_command, words, (*EXPLAINED, OSError))  # OSError: such as a full disk
    return explained(serve_command, words[1:])

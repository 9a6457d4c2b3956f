"""`python -m service`: serve the models directory over HTTP."""

import signal
import sys
import traceback
from collections.abc import Sequence

from service import logs
from service.address import AddressError, check_address
from service.registry import NothingToServeError
from service.session import DeviceUnavailableError
from service.settings import SettingsError, parse

EXIT_START, EXIT_SETTINGS = 1, 2


def serve_command(arguments: Sequence[str]) -> int:
    """Start the service, or say in one line why it cannot."""
    debug = "--debug" in arguments
    try:
        settings, debug = parse(arguments)
        check_address(settings.host, settings.port)
        logs.configure(settings.log_level, settings.log_format)
        _expect_signals()
        from service.app import create_app  # after the settings: a typing mistake is told at once
        from service.server import exit_stuck, serve

        serve(create_app(settings, on_stuck=exit_stuck), settings)
    except (SettingsError, AddressError, NothingToServeError, DeviceUnavailableError) as error:
        if debug:
            traceback.print_exc()
        print(f"service: {error}", file=sys.stderr)
        return EXIT_SETTINGS if isinstance(error, SettingsError) else EXIT_START
    return 0


def _expect_signals() -> None:
    """While the models load: nothing is accepted yet, so SIGTERM just ends, and SIGHUP has nothing to add."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def main(arguments: Sequence[str]) -> int:
    return serve_command(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

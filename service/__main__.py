"""`python -m service`: serve the models directory over HTTP."""

import sys
import traceback
from collections.abc import Sequence

from service import logs
from service.registry import NothingToServeError
from service.session import DeviceUnavailableError
from service.settings import SettingsError, parse

EXIT_START, EXIT_SETTINGS = 1, 2


def serve_command(arguments: Sequence[str]) -> int:
    """Start the service, or say in one line why it cannot."""
    debug = "--debug" in arguments
    try:
        settings, debug = parse(arguments)
        logs.configure(settings.log_level, settings.log_format)
        from service.app import create_app  # after the settings: a typing mistake is told at once
        from service.server import exit_stuck, serve

        serve(create_app(settings, on_stuck=exit_stuck), settings)
    except (SettingsError, NothingToServeError, DeviceUnavailableError) as error:
        if debug:
            traceback.print_exc()
        print(f"service: {error}", file=sys.stderr)
        return EXIT_SETTINGS if isinstance(error, SettingsError) else EXIT_START
    return 0


def main(arguments: Sequence[str]) -> int:
    return serve_command(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What the commands of the service share: settings from flags and variables, and one line for each error."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from pydantic import ValidationError

from quatserve.service.errors import (
    AddressError,
    ArtifactError,
    DeviceUnavailableError,
    NothingToServeError,
    SettingsError,
)
from quatserve.service.settings import Settings

ENVIRONMENT_PREFIX = "QUATSERVE_"
EXIT_FAILURE, EXIT_SETTINGS = 1, 2
START_ERRORS = (SettingsError, AddressError, NothingToServeError, DeviceUnavailableError, ArtifactError)


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def default_of(name: str) -> str:
    """The default as a person would type it; empty where there is none."""
    default = Settings.model_fields[name].default
    if isinstance(default, bool):
        return str(default).lower()
    return "" if default is None or default == () else str(default)


class CommandParser(argparse.ArgumentParser):
    """Raises SettingsError instead of printing the usage, and does not accept abbreviated flags."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; see `{self.prog} --help`")

    def add_settings(self, names: Iterable[str] = Settings.model_fields) -> None:
        """Add one flag for each setting. Absent flags leave no value, so that the environment applies."""
        for name in names:
            description = Settings.model_fields[name].description
            shown = f"{description} (default: {default_of(name) or 'none'}; {variable_of(name)})"
            self.add_argument(
                flag_of(name),
                dest=name,
                default=argparse.SUPPRESS,
                metavar="VALUE",
                help=shown.replace("%", "%%"),
            )


def settings_from(options: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Settings:
    """Flags override the environment, which overrides the defaults; or one line that names the bad value."""
    flags = {name: value for name, value in vars(options).items() if name in Settings.model_fields}
    try:
        settings = Settings.model_validate(from_environment(environment) | flags)
    except ValidationError as error:
        raise SettingsError(_first_fault(error)) from error
    settings.keys()
    return settings


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings among the variables. A misspelt one is an error: it could be the one with the API keys."""
    found = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name not in Settings.model_fields:
            raise SettingsError(f"{variable}: there is no such setting; see `quatserve serve --help`")
        found[name] = value
    return found


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    message = fault["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    if not fault["loc"]:
        return message
    name = str(fault["loc"][0])
    value = "" if name == "api_keys" else f" is {fault['input']!r}:"  # keys are secret
    return f"{name}{value} {message} ({flag_of(name)}, {variable_of(name)})"


def run(
    command: Callable[[Sequence[str]], int],
    words: Sequence[str],
    errors: tuple[type[Exception], ...] = START_ERRORS,
) -> int:
    """Run a command; an expected error is one line on standard error, and with --debug its traceback."""
    try:
        return command(words)
    except errors as error:
        if "--debug" in words:  # not from the parsed options: parsing may be what failed
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return EXIT_SETTINGS if isinstance(error, SettingsError) else EXIT_FAILURE

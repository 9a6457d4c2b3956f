"""The commands of `quatserve`, one a module, thin over the functions beside this package.

A module here imports nothing heavy until it runs, so that `--help` and mistakes answer at once.
"""

from argparse import ArgumentParser, Namespace
from typing import Protocol

from quatserve.training.commands import download, evaluate, fit, import_keras, networks, recipes


class Command(Protocol):
    """What a command's module defines; its docstring is its help."""

    NAME: str
    EXAMPLES: str
    __doc__: str | None

    def add_arguments(self, parser: ArgumentParser) -> None: ...
    def run(self, options: Namespace) -> None: ...


COMMANDS: tuple[Command, ...] = (recipes, networks, download, fit, evaluate, import_keras)

"""The command `quatserve`: runs one command, and imports only the package that it is in."""

import sys
from collections.abc import Sequence
from importlib import import_module, metadata
from pathlib import Path

SERVE, BULK = "quatserve.service.commands", "quatserve.service.bulk.commands"
CHECK = "quatserve.check_gpu"
TRAINING, EXPORT = "quatserve.training.commands.main", "quatserve.export.commands"
# Command -> the module whose `main` runs it, and what it does. `serve` must not import torch.
COMMANDS = {
    "serve": (SERVE, "serve a models directory over HTTP"),
    "classify": (BULK, "write the classes of image files into a table, without a server"),
    "segment": (BULK, "write pictures of the road in image files, without a server"),
    "check-gpu": (CHECK, "check this host's GPU with the models: one table, one report"),
    "recipes": (TRAINING, "list the recipes that `fit` trains"),
    "networks": (TRAINING, "list the networks with their parameters and operations"),
    "download": (TRAINING, "download and unpack a data set"),
    "fit": (TRAINING, "train a recipe into a run directory"),
    "evaluate": (TRAINING, "measure the trained network of a run"),
    "import-keras": (TRAINING, "read the road networks that the paper's authors published"),
    "build": (EXPORT, "fold a finished run into an artifact for the service"),
    "inspect": (EXPORT, "show what is in an artifact"),
    "verify": (EXPORT, "check artifacts: digests, operators and outputs"),
}
RUNTIME = "install the extra cpu (pip install 'quatserve[cpu]'), or gpu for an NVIDIA GPU"
REMEDY = {
    SERVE: RUNTIME,
    BULK: RUNTIME,
    CHECK: "install the extra gpu (pip install 'quatserve[gpu]')",
    TRAINING: "install the extra training (pip install 'quatserve[training]')",
    EXPORT: "install the extra export (pip install 'quatserve[export]')",
}
NO_LINKS = (
    "this checkout has no symbolic links: quatserve/training, quatserve/export and quatserve/service must be "
    "links to the directories of these names at the top; clone the repository with git on Linux"
)
EXIT_USAGE = 2


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: quatserve COMMAND ...",
            "",
            "Deep quaternion networks: train them, fold them, serve them.",
            "",
            *lines,
            "",
            "`quatserve COMMAND --help` describes a command; `quatserve --version` prints the version.",
        ]
    )


def start() -> None:
    """The entry point of the process, for the console script and for every `python -m`."""
    if sys.argv[1:2] == ["fit"]:
        import_module("quatserve.training.loop.allocator").keep_memory()
    sys.exit(main(sys.argv[1:]))


def main(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else EXIT_USAGE
    if words[0] == "--version":
        print(metadata.version("quatserve"))
        return 0
    if words[0] not in COMMANDS:
        print(f"error: there is no command {words[0]!r}; see `quatserve --help`", file=sys.stderr)
        return EXIT_USAGE
    return run(COMMANDS[words[0]][0], words)


def run(module: str, words: Sequence[str]) -> int:
    """Run `module.main`, or print which part of the installation is missing."""
    try:
        command = import_module(module).main
        return int(command(words))
    except ModuleNotFoundError as error:
        if "--debug" in words:
            raise
        print(f"error: {_reason(module, error.name or '')}", file=sys.stderr)
        return EXIT_USAGE


def _reason(module: str, missing: str) -> str:
    package = missing.removeprefix("quatserve.")
    if package == missing:
        return f"{missing} is not installed: {REMEDY[module]}"
    link = Path(__file__).with_name(package)
    if link.is_symlink() or link.is_file():  # without support for links, git writes a text file
        return NO_LINKS
    return f"this installation has no {missing}, such as an image for serving; install all of quatserve"


if __name__ == "__main__":
    start()

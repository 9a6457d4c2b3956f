"""The command `quatserve`: dispatches to a package, and loads no other."""

import sys
from collections.abc import Sequence
from importlib import import_module, metadata

SERVICE, TRAINING, EXPORT = (
    "quatserve.service.commands",
    "quatserve.training.commands.main",
    "quatserve.export.commands",
)
# Command -> the module whose `main` runs it, and what it does. `serve` must not import torch.
COMMANDS = {
    "serve": (SERVICE, "serve a models directory over HTTP"),
    "classify": (SERVICE, "name what is in image files, without a server"),
    "segment": (SERVICE, "draw where the road is in image files, without a server"),
    "recipes": (TRAINING, "list the recipes that `fit` trains"),
    "networks": (TRAINING, "list the networks with their parameters and their work"),
    "download": (TRAINING, "download a data set and unpack it"),
    "fit": (TRAINING, "train a recipe into a run directory"),
    "evaluate": (TRAINING, "measure the finished network of a run"),
    "import-keras": (TRAINING, "read the road networks that the paper's authors published"),
    "build": (EXPORT, "fold a finished run into an artifact that the service serves"),
    "inspect": (EXPORT, "show what is in an artifact"),
    "verify": (EXPORT, "check artifacts: digests, operators and outputs"),
}
EXTRA_OF = {SERVICE: "cpu", TRAINING: "training", EXPORT: "export"}
LINKS = (
    "in a checkout, quatserve/training, export and service must be links to the directories at the top "
    "(git makes them on Linux; a zip download does not)"
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
            "`quatserve COMMAND --help` explains each; `quatserve --version` prints the version.",
        ]
    )


def start() -> None:
    """The whole process: the console script, `python -m quatserve` and `quatserve` alike."""
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
        print(f"error: {words[0]!r} is no command: `quatserve --help` lists them", file=sys.stderr)
        return EXIT_USAGE
    return run(COMMANDS[words[0]][0], words)


def run(module: str, words: Sequence[str]) -> int:
    """Run `module.main`, or say which part of the installation is missing."""
    try:
        command = import_module(module).main
        return int(command(words))
    except ModuleNotFoundError as error:
        if "--debug" in words:
            raise
        print(f"error: {_remedy(module, error.name or '')}", file=sys.stderr)
        return EXIT_USAGE


def _remedy(module: str, missing: str) -> str:
    package = ".".join(module.split(".")[:2])
    if package.startswith(missing):
        return f"{package} is missing: {LINKS}"
    if missing.startswith("quatserve"):
        return f"this installation has no {missing}: install quatserve[{EXTRA_OF[module]}] as a whole"
    return f"{missing} is not installed: pip install 'quatserve[{EXTRA_OF[module]}]' brings it"


if __name__ == "__main__":
    start()

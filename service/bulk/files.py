"""Finds the input files: paths and folders from the command line, or a list on standard input."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from quatserve.service.imaging.render import Output

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
STANDARD_INPUT = "-"


class InputFile(NamedTuple):
    """A file, and its path relative to the folder on the command line; its name if it was listed itself."""

    path: str
    relative: str


def with_standard_input(paths: Sequence[str], standard_input: BinaryIO) -> Iterator[str]:
    """The paths of the command line, with `-` replaced by the lines of standard input."""
    for path in paths:
        if path == STANDARD_INPUT:
            yield from (os.fsdecode(line.rstrip(b"\r\n")) for line in standard_input if line.strip())
        else:
            yield path


def picture_suffix(output: Output) -> str:
    """The end of the name of every picture that `segment` writes."""
    return f"-{output}.png"


PICTURE_SUFFIXES = tuple(map(picture_suffix, Output))


def find_files(paths: Iterable[str], results: Path | None = None) -> list[InputFile]:
    """Each file once: listed files in the order given, files of a folder sorted by name.

    A listed file is taken whatever its name; from a folder, only names that end like an image. Files in
    `results`, the folder for the pictures, are not input, nor are pictures written beside their photos.
    """
    found = (item for path in paths for item in _expand(path, results))
    return list({item.path: item for item in found}.values())


def _expand(path: str, results: Path | None) -> Iterator[InputFile]:
    if not os.path.isdir(path):  # noqa: PTH112  # Path.is_dir raises without permission
        yield InputFile(path, Path(path).name)
        return
    results = results.resolve() if results else None
    pictures = PICTURE_SUFFIXES if Path(path).resolve() == results else ()
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(
            name for name in folders if name[0] != "." and Path(folder, name).resolve() != results
        )
        for name in sorted(files):
            if name[0] != "." and name.lower().endswith(SUFFIXES) and not name.endswith(pictures):
                whole = os.path.join(folder, name)  # noqa: PTH118  # a million Path objects take too much memory
                yield InputFile(whole, os.path.relpath(whole, path))

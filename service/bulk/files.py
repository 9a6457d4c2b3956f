"""Which files are meant: paths and folders as a person names them, or a list on standard input."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from quatserve.service.imaging.images import Output

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
STANDARD_INPUT = "-"


class Found(NamedTuple):
    """A file, and what it is called below the folder that was named: itself, where it was named alone."""

    path: str
    relative: str


def named(paths: Sequence[str], standard_input: BinaryIO) -> Iterator[str]:
    """The paths of the command line, with `-` replaced by the lines of standard input."""
    for path in paths:
        if path == STANDARD_INPUT:
            yield from (os.fsdecode(line.rstrip(b"\r\n")) for line in standard_input if line.strip())
        else:
            yield path


def ending(output: Output) -> str:
    """What the name of a picture made of a file ends with."""
    return f"-{output}.png"


RESULTS = tuple(map(ending, Output))


def gather(paths: Iterable[str], leave_out: Path | None = None) -> list[Found]:
    """Every file once, in the order named; folders in the order of their names.

    A folder gives what looks like an image by its name, a file named itself is taken whatever its name is.
    `leave_out` is where the results go: they are not looked at again, beside the photos either.
    """
    found = (item for path in paths for item in _expand(path, leave_out))
    return list({item.path: item for item in found}.values())


def _expand(path: str, leave_out: Path | None) -> Iterator[Found]:
    if not os.path.isdir(path):  # noqa: PTH112  # Path raises where it may not look
        yield Found(path, Path(path).name)
        return
    skipped = leave_out.resolve() if leave_out else None
    results = RESULTS if Path(path).resolve() == skipped else ()
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(
            name for name in folders if name[0] != "." and Path(folder, name).resolve() != skipped
        )
        for name in sorted(files):
            if name[0] != "." and name.lower().endswith(SUFFIXES) and not name.endswith(results):
                whole = os.path.join(folder, name)  # noqa: PTH118  # a million Path objects would be heavy
                yield Found(whole, os.path.relpath(whole, path))

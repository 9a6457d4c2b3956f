"""Results of segmentation: a PNG for each file below a folder, there whole or not at all."""

import errno
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from quatserve.service.bulk.engine import Answer, Fault, read
from quatserve.service.bulk.files import Found, ending
from quatserve.service.errors import ImageError
from quatserve.service.imaging import images
from quatserve.service.web.inference import render
from quatserve.service.web.queries import SegmentQuery


def picture_path(file: Found, folder: Path, output: images.Output) -> Path:
    """FOLDER/below/street.jpg -> OUT/below/street-mask.png"""
    relative = Path(file.relative)
    return folder / relative.parent / (relative.stem + ending(output))


def without_clashes(
    files: Iterable[Found], folder: Path, output: images.Output
) -> tuple[list[Found], list[Fault]]:
    """The files whose picture has a name of its own, and those that come after another of that name."""
    first: dict[Path, Found] = {}
    faults: list[Fault] = []
    for file in files:
        taken = first.setdefault(picture_path(file, folder, output), file)
        if taken is not file:
            faults.append(Fault(file, f"its result would have the name of that of {taken.path}"))
    return list(first.values()), faults


def write_whole(path: Path, content: bytes) -> None:
    """Under another name first: whoever looks, and a second run, sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        Path(part).chmod(0o644)
        Path(part).replace(path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def draw(answer: Answer, path: Path, query: SegmentQuery, max_pixels: int) -> Fault | None:
    """Write the picture. An overlay reads its photo again: kept, a batch of photos would fill the memory."""
    photo = None
    if query.output is images.Output.OVERLAY:
        try:
            photo = images.decode(read(answer.file.path, max_pixels), max_pixels)
        except (ImageError, OSError) as error:
            return Fault(answer.file, str(error))
    picture, _ = render(answer.row, answer.size, query, photo)
    try:
        write_whole(path, picture)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # a full disk is no fault of this file
            raise
        return Fault(answer.file, f"the name of its result is too long ({path.name})")
    return None

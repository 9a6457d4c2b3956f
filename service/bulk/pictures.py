"""The results of `segment`: one PNG per file, written atomically below a folder."""

import errno
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from quatserve.service.bulk.files import InputFile, picture_suffix
from quatserve.service.bulk.pipeline import FileResult, SkippedFile, read
from quatserve.service.errors import ImageError
from quatserve.service.imaging.images import decode
from quatserve.service.imaging.render import Output, render


def picture_path(file: InputFile, folder: Path, output: Output) -> Path:
    """PHOTOS/below/street.jpg -> OUT/below/street-mask.png"""
    relative = Path(file.relative)
    return folder / relative.parent / (relative.stem + picture_suffix(output))


def without_clashes(
    files: Iterable[InputFile], folder: Path, output: Output
) -> tuple[list[InputFile], list[SkippedFile]]:
    """The files whose picture has a path of its own, and the later files whose picture would replace one."""
    first: dict[Path, InputFile] = {}
    skipped: list[SkippedFile] = []
    for file in files:
        owner = first.setdefault(picture_path(file, folder, output), file)
        if owner is not file:
            skipped.append(SkippedFile(file, f"its picture would have the same name as that of {owner.path}"))
    return list(first.values()), skipped


def write_atomically(path: Path, content: bytes) -> None:
    """Write under a temporary name, then rename: readers and a second run see the whole file or none."""
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


def write_picture(
    result: FileResult, path: Path, output: Output, threshold: float, max_pixels: int
) -> SkippedFile | None:
    """Write the picture of one file. An overlay reads its photo again: a whole batch is too large to keep."""
    photo = None
    if output is Output.OVERLAY:
        try:
            photo = decode(read(result.file.path, max_pixels), max_pixels)
        except (ImageError, OSError) as error:
            return SkippedFile(result.file, str(error))
    picture, _ = render(result.row[0], result.size, output, threshold, photo)
    try:
        write_atomically(path, picture)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # such as a full disk: not the fault of this file
            raise
        return SkippedFile(result.file, f"the name of its picture is too long ({path.name})")
    return None

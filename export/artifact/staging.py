"""Writes an artifact directory atomically: readers see all of it or nothing."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quatserve.service.artifact import DESCRIPTION_FILE, NAME_PATTERN, VERSION_PATTERN
from quatserve.training.errors import UserError


def name_and_version(out: Path) -> tuple[str, int]:
    """models/NAME/VERSION -> NAME, VERSION."""
    out = out.absolute()
    if not (NAME_PATTERN.fullmatch(out.parent.name) and VERSION_PATTERN.fullmatch(out.name)):
        raise UserError(
            f"{out.parent.name}/{out.name} does not name an artifact: use NAME/VERSION, the name in lower "
            "case with dashes and the version up to nine digits, as in models/cifar10-quaternion/1"
        )
    return out.parent.name, int(out.name)


@contextmanager
def staged(out: Path, *, force: bool) -> Iterator[Path]:
    """Yield a directory to write into. It is renamed to `out` if the block succeeds, and removed otherwise.

    It lies beside `out`, because a rename is atomic only within one file system. Its name starts with a dot,
    so that no reader takes it for a version.
    """
    _check_free(out, force=force)
    made = _make_parents(out)
    directory = _make_sibling(out)
    try:
        yield directory
        _flush(directory)
        _check_free(out, force=force)  # another build may have finished meanwhile
        _replace(directory, out)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # another build may have written there
            for parent in reversed(made):
                parent.rmdir()
        raise


def _check_free(out: Path, *, force: bool) -> None:
    if not out.exists():
        return
    if not force:
        raise UserError(f"{out} exists already: name another version, or replace it by --force")
    if not (out / DESCRIPTION_FILE).is_file():
        raise UserError(f"{out} is no artifact (no {DESCRIPTION_FILE}), so --force will not replace it")


def _make_parents(out: Path) -> list[Path]:
    """Create the missing parents of `out` and return them, outermost first."""
    missing = [parent for parent in reversed(out.absolute().parents) if not parent.exists()]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out.parent} cannot be created ({error.strerror}): name another --out") from error
    return missing


def _make_sibling(out: Path) -> Path:
    try:
        directory = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        directory.chmod(0o755)  # mkdtemp's 0700 would lock out a service that runs as another user
    except OSError as error:
        raise UserError(
            f"{out.parent} cannot be written to ({error.strerror}): name another --out"
        ) from error
    return directory


def _flush(directory: Path) -> None:
    """Sync every file to disk before the rename, so that a crash cannot leave empty files in `out`."""
    for path in (*directory.iterdir(), directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _replace(directory: Path, out: Path) -> None:
    """Move `directory` to `out`. Between the two renames `out` is absent, never incomplete.

    If the second rename fails, the old artifact is put back.
    """
    if not out.exists():
        directory.rename(out)
        return
    old = directory.with_name(f"{directory.name}-old")
    out.rename(old)
    try:
        directory.rename(out)
    except BaseException:  # also KeyboardInterrupt, which a signal raises
        if not out.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)

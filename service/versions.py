"""The models directory as it lies on disk: which versions there are of which name."""

import re
from pathlib import Path

from service.artifact import NAME_PATTERN

VERSION_PATTERN = re.compile(r"[1-9][0-9]{0,8}")


class NothingToServeError(Exception):
    """The models directory cannot be read, or holds nothing that can be served."""


def versions_on_disk(models_dir: Path) -> dict[str, list[int]]:
    """NAME -> versions, highest first. Anything not named like an artifact is not one."""
    try:
        found = {
            directory.name: versions
            for directory in models_dir.iterdir()
            if NAME_PATTERN.fullmatch(directory.name)
            and directory.is_dir()
            and (versions := _versions_in(directory))
        }
    except OSError as error:
        raise NothingToServeError(f"models directory {models_dir}: {error.strerror}") from error
    if not found:  # such as the mount point of a volume that is gone
        raise NothingToServeError(f"models directory {models_dir}: it holds no NAME/VERSION directory")
    return found


def _versions_in(directory: Path) -> list[int]:
    versions = [v.name for v in directory.iterdir() if VERSION_PATTERN.fullmatch(v.name) and v.is_dir()]
    return sorted(map(int, versions), reverse=True)

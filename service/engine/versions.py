"""Lists the models directory: the versions of each name."""

from pathlib import Path

from quatserve.service.artifact import NAME_PATTERN, VERSION_PATTERN
from quatserve.service.errors import NothingToServeError


def versions_on_disk(models_dir: Path) -> dict[str, list[int]]:
    """NAME -> versions, highest first; an empty list if its directory cannot be read.

    Directories whose names do not match NAME/VERSION are ignored.
    """
    try:
        named = [path for path in models_dir.iterdir() if NAME_PATTERN.fullmatch(path.name)]
    except OSError as error:
        raise NothingToServeError(f"models directory {models_dir}: {error.strerror}") from error
    listed = {directory.name: _versions_in(directory) for directory in named}
    found = {name: versions for name, versions in listed.items() if versions != []}
    if not found:  # for example, an unmounted volume
        raise NothingToServeError(f"models directory {models_dir}: it holds no NAME/VERSION directory")
    return {name: versions or [] for name, versions in found.items()}


def _versions_in(directory: Path) -> list[int] | None:
    try:
        paths = directory.iterdir() if directory.is_dir() else ()
        versions = [
            int(path.name) for path in paths if VERSION_PATTERN.fullmatch(path.name) and path.is_dir()
        ]
    except OSError:
        return None
    return sorted(versions, reverse=True)

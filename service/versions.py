"""The models directory as it lies on disk: which versions there are of which name."""

from pathlib import Path

from service.artifact import NAME_PATTERN, VERSION_PATTERN


class NothingToServeError(Exception):
    """The models directory cannot be read, or holds nothing that can be served."""


def versions_on_disk(models_dir: Path) -> dict[str, list[int]]:
    """NAME -> versions, highest first; none where its directory cannot be read.

    Anything not named like an artifact is not one.
    """
    try:
        named = [d for d in models_dir.iterdir() if NAME_PATTERN.fullmatch(d.name) and d.is_dir()]
    except OSError as error:
        raise NothingToServeError(f"models directory {models_dir}: {error.strerror}") from error
    listed = {directory.name: _versions_in(directory) for directory in named}
    found = {name: versions for name, versions in listed.items() if versions != []}
    if not found:  # such as the mount point of a volume that is gone
        raise NothingToServeError(f"models directory {models_dir}: it holds no NAME/VERSION directory")
    return {name: versions or [] for name, versions in found.items()}


def _versions_in(directory: Path) -> list[int] | None:
    try:
        versions = [v.name for v in directory.iterdir() if VERSION_PATTERN.fullmatch(v.name) and v.is_dir()]
    except OSError:
        return None
    return sorted(map(int, versions), reverse=True)

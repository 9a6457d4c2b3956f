"""Lists the models directory: which versions of each name may serve."""

from dataclasses import dataclass
from pathlib import Path

from quatserve.service.artifact import NAME_PATTERN, VERSION_PATTERN, Task
from quatserve.service.errors import NothingToServeError
from quatserve.service.models_file import ModelsFile, read_models_file
from quatserve.service.settings import Settings


@dataclass(frozen=True)
class Repository:
    """A models directory at one moment."""

    versions: dict[str, list[int]]  # highest first; a pinned name has its pin alone; [] cannot be read
    models_file: ModelsFile

    def default_model(self, task: Task, settings: Settings) -> str:
        """The model of a request that names none; empty where neither setting nor file names one."""
        return settings.default_model(task) or self.models_file.defaults.get(task, "")


def read_repository(models_dir: Path) -> Repository:
    """List the directory and read its `models.json`. Other names than NAME/VERSION are ignored."""
    try:
        named = [path for path in models_dir.iterdir() if NAME_PATTERN.fullmatch(path.name)]
    except OSError as error:
        raise NothingToServeError(f"models directory {models_dir}: {error.strerror}") from error
    listed = {directory.name: _versions_in(directory) for directory in named}
    found = {name: versions or [] for name, versions in listed.items() if versions != []}
    if not found:  # for example, an unmounted volume
        raise NothingToServeError(f"models directory {models_dir}: it holds no NAME/VERSION directory")
    models_file = read_models_file(models_dir)
    pinned = {name: [version] for name, version in models_file.pins.items() if name in found}
    return Repository(found | pinned, models_file)


def _versions_in(directory: Path) -> list[int] | None:
    try:
        paths = directory.iterdir() if directory.is_dir() else ()
        versions = [
            int(path.name) for path in paths if VERSION_PATTERN.fullmatch(path.name) and path.is_dir()
        ]
    except OSError:
        return None
    return sorted(versions, reverse=True)

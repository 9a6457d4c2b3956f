"""`models.json` in the models directory: default models, pinned versions, and names that must serve.

    {"defaults": {"classification": "cifar10-quaternion"}, "pins": {"kitti-road-quaternion": 1},
     "required": ["cifar10-quaternion"]}

It is optional, and so is every field. It is read at the start and on every rescan, so that a pin and a SIGHUP
go back to an earlier version.
"""

from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quatserve.service.artifact import NAME_PATTERN, Task, first_fault
from quatserve.service.artifact_files import read_regular
from quatserve.service.errors import SettingsError

MODELS_FILE: Final = "models.json"
MAX_BYTES = 1_048_576
Name = Annotated[str, Field(pattern=rf"^{NAME_PATTERN.pattern}$")]
Version = Annotated[int, Field(ge=1)]


class ModelsFile(BaseModel):
    """Which of the models on disk serve, and as what."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    defaults: dict[Task, Name] = {}  # the model of a request that names none
    pins: dict[Name, Version] = {}  # the highest version serves otherwise
    required: tuple[Name, ...] | None = None  # must serve before the service is ready


def read_models_file(models_dir: Path) -> ModelsFile:
    """Read the file; without one, return an empty ModelsFile. SettingsError names what is wrong."""
    path = models_dir / MODELS_FILE
    try:
        return ModelsFile.model_validate_json(read_regular(path, MAX_BYTES))
    except FileNotFoundError:
        return ModelsFile()
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise SettingsError(f"{path}: {first_fault(error)}") from error

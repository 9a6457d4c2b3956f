"""Writes tensors and their metadata to one safetensors file, atomically. Nothing is pickled."""

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from quatserve.training.errors import UserError

FORMAT = "quatserve-1"


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` atomically: after a crash or on a full disk, the previous file is still there."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise UserError(
            f"{path} could not be written ({error.strerror}): the previous one is kept"
        ) from error


def write_tensors(path: Path, tensors: dict[str, Tensor], meaning: dict[str, Any]) -> None:
    """Save `tensors`, with `meaning` (plain data) in the header."""
    metadata = {"format": FORMAT, "meaning": json.dumps(meaning)}
    write_bytes(path, save({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, metadata))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the meaning that `write_tensors` saved."""
    if not path.is_file():
        raise UserError(f"{path} is missing: is this a run directory of `quatserve fit`?")
    try:
        with safe_open(path, framework="pt") as stream:
            metadata = stream.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise UserError(
                    f"{path} is not a checkpoint of this program: its format is {metadata.get('format')}"
                )
            names = stream.keys()
            return {name: stream.get_tensor(name) for name in names}, json.loads(metadata["meaning"])
    except SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}): put a whole copy in its place") from error

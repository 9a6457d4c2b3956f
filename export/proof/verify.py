"""Verifies an artifact: its digests, its graphs, and the outputs of its probe on this machine."""

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from quatserve.export.proof.contract import check_graph
from quatserve.export.proof.runtime import run, session_of
from quatserve.service.artifact import (
    MAX_PROBE_BYTES,
    Description,
    ModelFile,
    Precision,
    read_description,
    read_verified,
)
from quatserve.service.errors import ArtifactError
from quatserve.training.loop.prediction import Images


def verify(directory: Path) -> dict[Precision, float]:
    """Return the largest difference from the probe by precision. Raise ArtifactError on any violation."""
    description = read_description(directory)
    images, expected = _read_probe(directory, description)
    return {
        file.precision: _verify_file(directory, file, description, images, expected[file.precision])
        for file in description.files
    }


def _verify_file(
    directory: Path, file: ModelFile, description: Description, images: Images, expected: NDArray[np.generic]
) -> float:
    content = read_verified(directory / file.name, file.sha256, file.bytes)
    ours = description.network is not None
    check_graph(_parsed(content, file), file.precision, description, ours=ours)
    session = session_of(content)
    whole = run(session, description.output_name, images)
    single = run(session, description.output_name, images, 1)
    return max(_difference(found, expected, file) for found in (whole, single))


def _parsed(content: bytes, file: ModelFile) -> onnx.ModelProto:
    try:
        model = onnx.load_from_string(content)
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # protobuf and onnx raise many types
        reason = (str(error).splitlines() or ["unreadable"])[0]
        raise ArtifactError(f"{file.name}: not an ONNX graph ({reason})") from error
    return model


def _difference(found: NDArray[np.generic], expected: NDArray[np.generic], file: ModelFile) -> float:
    if found.shape != expected.shape:
        raise ArtifactError(f"{file.name}: output is {list(found.shape)}, probe has {list(expected.shape)}")
    difference = float(np.abs(found.astype(np.float64) - expected.astype(np.float64)).max())
    if not difference <= file.tolerance:  # True for NaN
        raise ArtifactError(
            f"{file.name}: probe differs by {difference:.3g}, tolerance is {file.tolerance:g}"
        )
    return difference


def _read_probe(
    directory: Path, description: Description
) -> tuple[Images, dict[Precision, NDArray[np.generic]]]:
    path = directory / description.probe.name
    content = read_verified(path, description.probe.sha256, MAX_PROBE_BYTES)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return arrays["images"], {f.precision: arrays[f.precision.value] for f in description.files}
    except (KeyError, ValueError, OSError) as error:
        raise ArtifactError(f"{path}: {error}") from error


def verify_all(directories: Iterable[Path]) -> tuple[list[str], list[str]]:
    """Return one line for each good artifact, and one for each bad one."""
    good, bad = [], []
    for directory in directories:
        try:
            found = verify(directory.absolute())
            good.append(f"{directory}: " + ", ".join(f"{p} within {d:.2g}" for p, d in found.items()))
        except ArtifactError as error:
            bad.append(f"{directory}: {error}")
    return good, bad

"""The artifact's probe: eight images and the outputs expected of them; a host's only numerical check."""

import io
import math
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatserve.service.artifact import MAX_PROBE_BYTES, Description, ModelFile, read_verified
from quatserve.service.engine.padding import Images, padded
from quatserve.service.engine.session import OUTPUT_DTYPES, row_shape
from quatserve.service.errors import ArtifactError

COUNT = 8  # images
HEADER_BYTES = 4096  # of an array in the file; numpy writes 128
Run = Callable[[Images], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Probe:
    images: Images
    expected: NDArray[Any]
    tolerance: float  # largest distance allowed, in units of the output

    def check(self, run: Run, size: int, buckets: Sequence[int] = ()) -> float:
        """The largest difference in batches of `size`, or ArtifactError if it exceeds the tolerance."""
        chunks = [list(self.images[i : i + size]) for i in range(0, len(self.images), size)]
        rows = [run(padded(chunk, buckets))[: len(chunk)] for chunk in chunks]
        found = np.concatenate(rows).astype(np.float64)
        if found.shape != self.expected.shape:
            raise ArtifactError(f"probe: output is {list(found.shape)}, expected {list(self.expected.shape)}")
        difference = float(np.abs(found - self.expected.astype(np.float64)).max())
        if not difference <= self.tolerance:  # so that NaN fails
            raise ArtifactError(
                f"probe: output differs by {difference:.3g}, tolerance is {self.tolerance:.3g}, "
                f"in batches of {size}"
            )
        return difference


def read_probe(directory: Path, description: Description, file: ModelFile) -> Probe:
    """The probe with the outputs that are expected of one of the graphs."""
    path = directory / description.probe.name
    data = read_verified(path, description.probe.sha256, MAX_PROBE_BYTES)
    image_bytes = description.height * description.width * 3
    row_bytes = math.prod(row_shape(description)) * OUTPUT_DTYPES[description.task].itemsize
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            images = _inflate(archive, "images", COUNT * image_bytes)
            expected = _inflate(archive, file.precision.value, COUNT * row_bytes)
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from error
    except Exception as error:  # numpy and zipfile raise half a dozen kinds on a damaged file
        raise ArtifactError(f"{path}: not a whole npz file ({error})") from error
    return Probe(images, expected, file.tolerance)


def _inflate(archive: zipfile.ZipFile, name: str, max_bytes: int) -> NDArray[Any]:
    """One array of an npz file. zipfile inflates no more than the size it tells, so bound that size."""
    member = archive.getinfo(f"{name}.npy")
    most = min(max_bytes, MAX_PROBE_BYTES) + HEADER_BYTES
    if member.file_size > most:
        raise ArtifactError(f"{name} has {member.file_size:,} bytes, at most {most:,} are allowed")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # zipfile bounds no other
        raise ArtifactError(f"{name} is compressed in another way than numpy's")
    with archive.open(member) as stream:
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return array

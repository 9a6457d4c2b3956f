"""The artifact's probe: eight images and the outputs expected of them; a host's only numerical check."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatserve.service.artifact import Description, ModelFile, read_verified
from quatserve.service.engine.padding import Images, padded
from quatserve.service.errors import ArtifactError

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
    data = read_verified(directory / description.probe.name, description.probe.sha256)
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return Probe(arrays["images"], arrays[file.precision.value], file.tolerance)
    except Exception as error:  # numpy and zipfile raise half a dozen kinds on a damaged file
        raise ArtifactError(
            f"{directory / description.probe.name}: not a whole npz file ({error})"
        ) from error

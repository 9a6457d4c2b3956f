"""What a model does before it may serve: every batch size once, and the probe within its tolerance."""

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatserve.service.artifact import Description, Precision, read_verified
from quatserve.service.errors import ArtifactError

TRIES = 3  # of a batch size: one run that stalled with the machine is not its pace
Run = Callable[[NDArray[np.uint8]], NDArray[Any]]


def read_probe(
    directory: Path, description: Description, precision: Precision
) -> tuple[NDArray[Any], NDArray[Any]]:
    data = read_verified(directory / description.probe.name, description.probe.sha256)
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return arrays["images"], arrays[precision.value]
    except Exception as error:  # numpy and zipfile raise half a dozen kinds on a damaged file
        raise ArtifactError(
            f"{directory / description.probe.name}: not a whole npz file ({error})"
        ) from error


def check_probe(
    run: Run,
    images: NDArray[Any],
    expected: NDArray[Any],
    tolerance: float,
    max_batch: int,
) -> float:
    """The probe's largest difference, or ArtifactError: the only numerical check a host ever gets."""
    chunks = [run(images[i : i + max_batch]) for i in range(0, len(images), max_batch)]
    found = np.concatenate(chunks).astype(np.float64)
    if found.shape != expected.shape:
        raise ArtifactError(f"probe: output is {list(found.shape)}, expected {list(expected.shape)}")
    difference = float(np.abs(found - expected.astype(np.float64)).max())
    if not difference <= tolerance:  # so that NaN fails
        raise ArtifactError(f"probe: output differs by {difference:.3g}, tolerance is {tolerance:.3g}")
    return difference


def warm_up(
    run: Run,
    image: NDArray[Any],
    max_batch: int,
    max_batch_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[int, ...]:
    """Run every batch size that will be used, doubling until one takes too long; at least size 1."""
    sizes = [*(1 << power for power in range(max_batch.bit_length()) if 1 << power < max_batch), max_batch]
    warmed: list[int] = []
    for size in sizes:
        batch = np.repeat(image[None], size, axis=0)
        run(batch)  # the first run of a shape allocates, and on a GPU searches: not its pace
        if warmed and not any(_seconds(run, batch, clock) <= max_batch_s for _ in range(TRIES)):
            break
        warmed.append(size)
    return tuple(warmed)


def _seconds(run: Run, batch: NDArray[Any], clock: Callable[[], float]) -> float:
    begun = clock()
    run(batch)
    return clock() - begun

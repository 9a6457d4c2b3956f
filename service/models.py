"""A model ready to serve: artifact verified, session open, every batch size warmed, probe passed."""

import hashlib
import io
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.artifact import ArtifactError, Description, Precision, read_description, sha256_of
from service.cpus import usable_cpus
from service.images import Target
from service.session import CUDA, DeviceUnavailableError, Placement, Session, choose_device
from service.settings import Device, PrecisionChoice, Settings

log = logging.getLogger("service.models")


@dataclass(frozen=True, kw_only=True)
class Model:
    """What the batcher, the bulk commands and the catalogue need of a loaded model."""

    description: Description
    precision: Precision
    session: Session
    target: Target
    max_batch: int
    buckets: tuple[int, ...]  # sizes to pad to; empty where the device takes any size
    fallback_reason: str | None = None  # why `auto` did not choose the GPU
    probe_difference: float = 0.0  # largest distance from the probe, in units of the output

    @property
    def provider(self) -> str:
        return self.session.provider


def choose_precision(choice: PrecisionChoice, description: Description, device: Device) -> Precision:
    """INT8 on a CPU where the artifact has it, fp32 on a GPU, anything else when asked for."""
    if choice is PrecisionChoice.AUTO:
        int8 = device is Device.CPU and description.file(Precision.INT8) is not None
        return Precision.INT8 if int8 else Precision.FP32
    return Precision(choice.value)


def _read_verified(path: Path, sha256: str) -> bytes:
    """The bytes that are hashed are the bytes that are used: nothing can change in between."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror})") from error
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise ArtifactError(f"{path}: sha256 is {found[:12]}..., model.json says {sha256[:12]}...")
    return data


def _verify_others(directory: Path, description: Description) -> None:
    """A damaged file of another precision is a damaged artifact."""
    for file in description.files:
        path = directory / file.name
        if not path.is_file() or sha256_of(path) != file.sha256:
            raise ArtifactError(f"{path}: missing, or not the file that was written")


def _read_probe(
    directory: Path, description: Description, precision: Precision
) -> tuple[NDArray[Any], NDArray[Any]]:
    data = _read_verified(directory / description.probe.name, description.probe.sha256)
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return arrays["images"], arrays[precision.value]
    except (KeyError, ValueError, OSError) as error:
        raise ArtifactError(f"{directory / description.probe.name}: {error}") from error


def check_probe(
    run: Callable[[NDArray[Any]], NDArray[Any]],
    images: NDArray[Any],
    expected: NDArray[Any],
    tolerance: float,
    max_batch: int,
) -> float:
    """Run the probe and return its largest difference, or raise: the only numerical check a host ever gets."""
    chunks = [run(images[i : i + max_batch]) for i in range(0, len(images), max_batch)]
    found = np.concatenate(chunks).astype(np.float64)
    if found.shape != expected.shape:
        raise ArtifactError(f"probe: output is {list(found.shape)}, expected {list(expected.shape)}")
    difference = float(np.abs(found - expected.astype(np.float64)).max())
    if not difference <= tolerance:  # so that NaN fails
        raise ArtifactError(f"probe: output differs by {difference:.3g}, tolerance is {tolerance:.3g}")
    return difference


def warm_up(
    run: Callable[[NDArray[Any]], NDArray[Any]],
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
        begun = clock()
        run(batch)
        if warmed and clock() - begun > max_batch_s:
            break
        warmed.append(size)
    return tuple(warmed)


def _open(
    directory: Path, description: Description, settings: Settings, device: Device
) -> tuple[Session, Precision]:
    precision = choose_precision(settings.precision, description, device)
    file = description.file(precision)
    if file is None:
        raise ArtifactError(
            f"{directory}: no {precision} file; it has {', '.join(f.precision for f in description.files)}"
        )
    placement = Placement(
        device=device, threads=settings.threads or usable_cpus(), gpu_memory_bytes=settings.gpu_memory_bytes
    )
    return Session(_read_verified(directory / file.name, file.sha256), description, placement), precision


def _open_on_best(
    directory: Path, description: Description, settings: Settings
) -> tuple[Session, Precision, str | None]:
    """The session where the settings want it; `auto` may settle for the CPU, and says why."""
    device, reason = choose_device(settings.device)
    try:
        return *_open(directory, description, settings, device), reason
    except DeviceUnavailableError as error:
        if settings.device is not Device.AUTO:
            raise
        return *_open(directory, description, settings, Device.CPU), str(error)


def load_model(directory: Path, settings: Settings) -> Model:
    """Verify, open, warm and probe `models/NAME/VERSION`; ArtifactError or DeviceUnavailableError otherwise."""
    description = read_description(directory)
    _verify_others(directory, description)
    session, precision, reason = _open_on_best(directory, description, settings)
    images, expected = _read_probe(directory, description, precision)
    try:
        sizes = warm_up(session.run, images[0], settings.max_batch, settings.max_batch_s)
        file = description.file(precision)
        assert file is not None  # _open found it
        difference = check_probe(session.run, images, expected, file.tolerance, sizes[-1])
    except ArtifactError as error:
        raise ArtifactError(f"{directory}: {error}") from error
    except Exception as error:  # a graph may raise anything on its first run
        raise ArtifactError(f"{directory}: {type(error).__name__}: {error}") from error
    model = Model(
        description=description,
        precision=precision,
        session=session,
        target=Target(description.height, description.width, description.resize),
        max_batch=sizes[-1],
        buckets=sizes if session.provider == CUDA else (),
        fallback_reason=reason,
        probe_difference=difference,
    )
    log.info("model ready", extra=_facts(model))
    return model


def _facts(model: Model) -> dict[str, object]:
    return {
        "model": model.description.name,
        "version": model.description.version,
        "precision": model.precision.value,
        "provider": model.provider,
        "max_batch": model.max_batch,
        "fallback_reason": model.fallback_reason,
        "probe_difference": model.probe_difference,
    }

"""Loads a model: verify the artifact, open the session, warm up every batch size, check the probe."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quatserve.service.artifact import Description, Precision, read_description, read_verified, verify_digests
from quatserve.service.engine.cpus import usable_cpus
from quatserve.service.engine.session import CUDA, Placement, Session, choose_device
from quatserve.service.engine.warmup import Run, check_probe, read_probe, warm_up
from quatserve.service.errors import ArtifactError, DeviceUnavailableError
from quatserve.service.settings import Device, PrecisionChoice, Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Model:
    """What the batcher, the bulk commands and the catalogue need of a loaded model."""

    description: Description
    precision: Precision
    session: Session
    max_batch: int
    buckets: tuple[int, ...]  # sizes to pad to; empty where the device takes any size
    probe: Callable[[Run], float]  # `check_probe` with all but its run
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
    graph = read_verified(directory / file.name, file.sha256)
    try:
        return Session(graph, description, placement), precision
    except ArtifactError as error:
        raise ArtifactError(f"{directory / file.name}: {error}") from error


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
    """Verify, open, warm and probe `models/NAME/VERSION`; or say why not."""
    description = read_description(directory)
    verify_digests(directory, description)
    session, precision, reason = _open_on_best(directory, description, settings)
    images, expected = read_probe(directory, description, precision)
    try:
        sizes = warm_up(session.run, images[0], settings.max_batch, settings.max_batch_s)
        file = description.file(precision)
        assert file is not None  # _open found it
        probe = partial(
            check_probe, images=images, expected=expected, tolerance=file.tolerance, max_batch=sizes[-1]
        )
        difference = probe(session.run)
    except ArtifactError as error:
        raise ArtifactError(f"{directory}: {error}") from error
    except Exception as error:  # a graph may raise anything on its first run
        raise ArtifactError(f"{directory}: {type(error).__name__}: {error}") from error
    model = Model(
        description=description,
        precision=precision,
        session=session,
        max_batch=sizes[-1],
        buckets=sizes if session.provider == CUDA else (),
        probe=probe,
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

"""Loads a model: verify the artifact, open its sessions, warm up every batch size, check the probe."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from quatserve.service.artifact import (
    Description,
    ModelFile,
    Precision,
    read_description,
    read_verified,
    verify_digests,
)
from quatserve.service.engine.cpus import lower_priority, usable_cpus
from quatserve.service.engine.cuda.buckets import BucketSessions, open_buckets
from quatserve.service.engine.cuda.graphs import GraphSession
from quatserve.service.engine.cuda.kernels import check_kernels
from quatserve.service.engine.cuda.session import CudaSession, provider_options, require_cuda
from quatserve.service.engine.padding import pad_to
from quatserve.service.engine.probe import Probe, Run, read_probe
from quatserve.service.engine.session import Session, open_on_cpu
from quatserve.service.engine.warmup import warm_up
from quatserve.service.errors import ArtifactError, DeviceFailedError, DeviceUnavailableError
from quatserve.service.settings import Device, PrecisionChoice, Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Model:
    """What the batcher, the bulk commands and the catalogue need of a loaded model."""

    description: Description
    precision: Precision
    session: Session | BucketSessions
    max_batch: int
    buckets: tuple[int, ...]  # sizes to pad to; empty where the device takes any size
    probe: Callable[[Run], float]  # the probe again, in one batch size
    prepare_thread: Callable[[], None]  # called once, on the thread that will run the session
    fallback_reason: str | None = None  # why `auto` did not take the GPU
    probe_difference: float = 0.0  # largest distance from the probe, in units of the output

    @property
    def provider(self) -> str:
        return self.session.provider


def choose_precision(choice: PrecisionChoice, description: Description, device: Device) -> Precision:
    """INT8 on a CPU and fp16 on a GPU where the artifact has it, else fp32; anything when asked for."""
    if choice is not PrecisionChoice.AUTO:
        return Precision(choice.value)
    fastest = Precision.INT8 if device is Device.CPU else Precision.FP16
    return fastest if description.file(fastest) else Precision.FP32


def load_model(directory: Path, settings: Settings) -> Model:
    """Verify, open, warm and probe `models/NAME/VERSION`; or say why not."""
    description = read_description(directory)
    verify_digests(directory, description)
    model = _on_best_device(directory, description, settings)
    log.info("model ready", extra=_facts(model))
    return model


def _on_best_device(directory: Path, description: Description, settings: Settings) -> Model:
    """On the device of the settings. `auto` takes the CPU if opening, warming or probing on the GPU fails."""
    if settings.device is Device.CPU:
        return _open(directory, description, settings, Device.CPU)
    try:
        return _open(directory, description, settings, Device.CUDA)
    except (ArtifactError, DeviceUnavailableError) as error:
        if settings.device is Device.CUDA:
            raise
        return replace(
            _open(directory, description, settings, Device.CPU),  # fails too if the artifact is bad
            fallback_reason=str(error),
        )


def _open(directory: Path, description: Description, settings: Settings, device: Device) -> Model:
    """Open, warm and probe on one device: a failure of any of the three fails the attempt."""
    file = _file(directory, description, choose_precision(settings.precision, description, device))
    graph = read_verified(directory / file.name, file.sha256, file.bytes)
    probe = read_probe(directory, description, file)
    open_model = _open_on_gpu if device is Device.CUDA else _open_on_cpu
    try:
        return open_model(graph, file.precision, description, settings, probe)
    except (DeviceUnavailableError, DeviceFailedError) as error:
        raise DeviceUnavailableError(f"device cuda: {error}") from error
    except ArtifactError as error:
        raise ArtifactError(f"{directory / file.name}: {error}") from error
    except Exception as error:  # a graph may raise anything on its first run
        raise ArtifactError(f"{directory / file.name}: {type(error).__name__}: {error}") from error


def _file(directory: Path, description: Description, precision: Precision) -> ModelFile:
    if file := description.file(precision):
        return file
    there = ", ".join(f.precision for f in description.files)
    raise ArtifactError(f"{directory}: no {precision} file; it has {there}")


def _open_on_cpu(
    graph: bytes, precision: Precision, description: Description, settings: Settings, probe: Probe
) -> Model:
    session = open_on_cpu(graph, description, settings.threads or usable_cpus())
    sizes = warm_up(session.run, probe.images[0], settings.max_batch, settings.max_batch_s)
    check = partial(probe.check, size=sizes[-1])
    return Model(
        description=description,
        precision=precision,
        session=session,
        max_batch=sizes[-1],
        buckets=(),
        probe=check,
        prepare_thread=lower_priority,
        probe_difference=check(session.run),
    )


def _open_on_gpu(
    graph: bytes, precision: Precision, description: Description, settings: Settings, probe: Probe
) -> Model:
    require_cuda()
    check_kernels(graph, precision)
    options = provider_options(precision, settings.gpu_memory_bytes, cuda_graphs=settings.cuda_graphs)

    def open_session(size: int) -> CudaSession:
        if settings.cuda_graphs:
            return GraphSession(graph, description, options, size)
        return CudaSession(graph, description, options)

    session = open_buckets(open_session, probe.images[0], settings.max_batch, settings.max_batch_s)
    sizes = session.sizes
    one = pad_to(sizes, min(len(probe.images), sizes[-1]))  # the size that holds the probe in one run, if any

    def probe_each_size() -> float:
        return max(probe.check(session.run, size, (size,)) for size in sizes)

    def prepare_thread() -> None:
        if settings.cuda_graphs:
            session.capture()
            probe_each_size()

    return Model(
        description=description,
        precision=precision,
        session=session,
        max_batch=sizes[-1],
        buckets=sizes,
        probe=partial(probe.check, size=one, buckets=(one,)),
        prepare_thread=prepare_thread,
        probe_difference=probe_each_size(),
    )


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

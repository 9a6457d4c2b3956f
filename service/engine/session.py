"""One onnxruntime session that is honest about where it runs, and can be told to stop."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from quatserve.service.artifact import INPUT_NAME, Description, Task
from quatserve.service.engine.cpus import lower_priority
from quatserve.service.errors import ArtifactError, BadOutputError, DeviceUnavailableError
from quatserve.service.settings import Device

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
OUTPUT_DTYPES = {Task.CLASSIFICATION: np.dtype(np.float32), Task.SEGMENTATION: np.dtype(np.uint8)}
ELEMENT_TYPES = {np.dtype(np.float32): "tensor(float)", np.dtype(np.uint8): "tensor(uint8)"}
SPIN_US = 50
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where and how wide a session runs."""

    device: Device
    threads: int
    gpu_memory_bytes: int = 0


def missing_for_cuda() -> str | None:
    """What keeps CUDA from working here as far as can be seen beforehand, or None."""
    if CUDA not in ort.get_available_providers():
        return "this onnxruntime has no CUDA; install the gpu extra (onnxruntime-gpu) instead"
    if not any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/dxg")):
        return "no NVIDIA driver is visible; in a container, run it with a GPU (--gpus all)"
    return None


def session_options(placement: Placement) -> ort.SessionOptions:
    """How wide a session runs, and how its threads wait for each other."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = placement.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # A thread spins between two operators rather than sleep, and no longer: sleeping costs a small image a
    # quarter of its time, spinning on would steal the processor from decoding and from other models.
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_US))  # from 1.26 on
    if placement.device is Device.CUDA:
        # Without it onnxruntime quietly runs what it likes on the CPU and still succeeds.
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return options


def _providers(placement: Placement) -> list[str | tuple[str, dict[str, str]]]:
    if placement.device is Device.CPU:
        return [CPU]
    options = {
        "cudnn_conv_algo_search": "HEURISTIC",  # a full search would stall the first run of each shape
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": "0",  # TF32 is about 1e-3 off: not what fp32 promises
    }
    if placement.gpu_memory_bytes:
        options["gpu_mem_limit"] = str(placement.gpu_memory_bytes)
    return [(CUDA, options)]


def _create(model: bytes, placement: Placement) -> ort.InferenceSession:
    session = _on_cuda(model, placement) if placement.device is Device.CUDA else _load(model, placement)
    session.disable_fallback()  # a failing run must fail, not move to another provider
    return session


def _load(model: bytes, placement: Placement) -> ort.InferenceSession:
    try:
        with ThreadPoolExecutor(
            1, initializer=lower_priority
        ) as thread:  # the session's threads inherit its priority
            return thread.submit(
                ort.InferenceSession,
                model,
                session_options(placement),
                providers=_providers(placement),
                enable_fallback=0,
            ).result()
    except Exception as error:
        raise ArtifactError(f"onnxruntime cannot load the graph: {first_line(error)}") from error


def _on_cuda(model: bytes, placement: Placement) -> ort.InferenceSession:
    if missing := missing_for_cuda():
        raise DeviceUnavailableError(f"device cuda: {missing}")
    ort.preload_dlls(directory="")
    try:
        session = _load(model, placement)
    except ArtifactError as error:
        _load(model, replace(placement, device=Device.CPU))  # fails here too: then it is the graph
        raise DeviceUnavailableError(f"device cuda: {error}") from error
    if session.get_providers()[0] != CUDA:  # seen: CUDA asked for, CPU given, no error
        raise DeviceUnavailableError(f"device cuda: onnxruntime fell back to {session.get_providers()[0]}")
    return session


def first_line(error: Exception) -> str:
    """What onnxruntime means: the rest is where in its source."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def choose_device(
    device: Device, missing: Callable[[], str | None] = missing_for_cuda
) -> tuple[Device, str | None]:
    """The device to try first, and for `auto` on a CPU the reason why."""
    if device is not Device.AUTO:
        return device, None
    reason = missing()
    return (Device.CPU, reason) if reason else (Device.CUDA, None)


class Session:
    """A loaded graph. Several threads may `run` at once; `terminate` means the run begun last."""

    def __init__(self, model: bytes, description: Description, placement: Placement) -> None:
        self._session = _create(model, placement)
        self._output = description.output_name
        self._dtype = OUTPUT_DTYPES[description.task]
        self._row_shape = row_shape(description)
        self._options = ort.RunOptions()
        self.provider: str = self._session.get_providers()[0]
        self._check_graph(description)

    def run(self, images: NDArray[np.uint8]) -> NDArray[Any]:
        """One row per image, of the promised shape and type, and finite."""
        self._options = options = ort.RunOptions()
        rows: NDArray[Any] = self._session.run([self._output], {INPUT_NAME: images}, options)[0]
        expected = (len(images), *self._row_shape)
        if rows.shape != expected or rows.dtype != self._dtype:
            raise BadOutputError(
                f"output is {rows.dtype}{list(rows.shape)}, not {self._dtype}{list(expected)}"
            )
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            raise BadOutputError("output holds numbers that are not finite")
        return rows

    def terminate(self) -> None:
        """Tell the run under way to stop; onnxruntime looks between two operators."""
        self._options.terminate = True

    def _check_graph(self, description: Description) -> None:
        """The graph speaks the contract: names, types and sizes."""
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        found = [(i.name, i.type, list(i.shape[1:])) for i in inputs]
        expected = [(INPUT_NAME, "tensor(uint8)", [description.height, description.width, 3])]
        if found != expected:
            raise ArtifactError(f"the graph takes {found}, model.json promises {expected}")
        if self._output not in [o.name for o in outputs if o.type == ELEMENT_TYPES[self._dtype]]:
            raise ArtifactError(f"the graph has no output {self._output} of type {self._dtype}")


def row_shape(description: Description) -> tuple[int, ...]:
    """The shape of the output of one image."""
    if description.task is Task.CLASSIFICATION:
        return (len(description.labels),)
    return (description.height, description.width)

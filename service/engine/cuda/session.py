"""CUDA sessions: whether there can be one, their options, and what the errors of their runs mean."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from quatserve.service.artifact import Description, Precision
from quatserve.service.engine.cuda.causes import explain, is_device_failure
from quatserve.service.engine.cuda.driver import Gpu, find_gpu
from quatserve.service.engine.cuda.libraries import load_libraries
from quatserve.service.engine.session import CUDA, Session, load_graph, session_options
from quatserve.service.errors import ArtifactError, DeviceFailedError, DeviceUnavailableError

FATAL = 4  # of onnxruntime's severities
THREADS = 1  # the thread that launches the kernels; a pool would wait idle


def require_cuda() -> Gpu:
    """The GPU, with its libraries loaded; or DeviceUnavailableError with cause and remedy."""
    if CUDA not in ort.get_available_providers():
        raise DeviceUnavailableError(
            "this onnxruntime has no CUDA: install the gpu extra in an environment of its own"
        )
    gpu = find_gpu()
    ort.set_default_logger_severity(FATAL)  # its errors are raised, too, and told in one line
    load_libraries()
    return gpu


def provider_options(
    precision: Precision, gpu_memory_bytes: int = 0, *, cuda_graphs: bool = False
) -> dict[str, str]:
    """Options of onnxruntime's CUDA provider; docs/gpu-host.md gives the reasons, `check-gpu` the figures."""
    options = {"arena_extend_strategy": "kSameAsRequested"}
    if precision is Precision.FP16:  # tensor cores want channels last, and cuDNN then adds the bias itself
        options |= {"prefer_nhwc": "1", "fuse_conv_bias": "1"}
    else:  # TF32 is about 1e-3 off; without it cuDNN drops every tensor-core engine, so never with fp16
        options |= {"use_tf32": "0"}
    if gpu_memory_bytes:
        options["gpu_mem_limit"] = str(gpu_memory_bytes)
    if cuda_graphs:
        options["enable_cuda_graph"] = "1"
    return options


def create(graph: bytes, options: Mapping[str, str], profile: Path | None = None) -> ort.InferenceSession:
    """An onnxruntime session with every operator on the GPU, or DeviceUnavailableError."""
    wanted = session_options(THREADS)
    if profile:
        wanted.enable_profiling, wanted.profile_file_prefix = True, str(profile)
    wanted.log_severity_level = FATAL
    # Without it onnxruntime quietly runs what it likes on the CPU and still succeeds.
    wanted.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    try:
        session = load_graph(graph, wanted, [(CUDA, options)])
    except ArtifactError as error:  # `check_kernels` read the graph before: it is the device
        raise DeviceUnavailableError(explain(error.__cause__ or error)) from error
    if (provider := session.get_providers()[0]) != CUDA:  # seen: CUDA asked for, CPU given, no error
        raise DeviceUnavailableError(f"onnxruntime took {provider} instead, without an error")
    return session


class CudaSession(Session):
    """A session whose CUDA errors are told apart from all others: they may be there to stay."""

    def __init__(self, graph: bytes, description: Description, options: Mapping[str, str]) -> None:
        super().__init__(create(graph, options), description)

    def _infer(self, images: NDArray[np.uint8], options: ort.RunOptions) -> NDArray[Any]:
        try:
            return self._launch(images, options)
        except Exception as error:
            if is_device_failure(error):
                raise DeviceFailedError(explain(error)) from error
            raise

    def _launch(self, images: NDArray[np.uint8], options: ort.RunOptions) -> NDArray[Any]:
        return super()._infer(images, options)

"""The host: driver, GPU, memory and libraries."""

import ctypes
from collections.abc import Iterator
from importlib import metadata

import onnxruntime as ort

from quatserve.service.check.report import Row, judged, measured
from quatserve.service.engine.cuda.causes import DRIVER_RELEASE
from quatserve.service.engine.cuda.driver import driver_release
from quatserve.service.engine.cuda.libraries import cudnn_version
from quatserve.service.engine.cuda.session import require_cuda

GIBIBYTE = 1 << 30
RUNTIME = "libcudart.so.13"


def check_host() -> Iterator[Row]:
    """Everything that a CUDA session needs; raises with cause and remedy if something is missing."""
    gpu = require_cuda()
    major, minor = gpu.driver_cuda
    release = driver_release()
    old = release and int(release.partition(".")[0]) < DRIVER_RELEASE
    yield judged(
        "driver",
        not old,
        f"{release or 'release unknown'}, up to CUDA {major}.{minor}; wanted {DRIVER_RELEASE} or newer",
    )
    yield judged("GPU", True, f"{gpu.name}, compute capability {gpu.capability[0]}.{gpu.capability[1]}")
    free, total = gpu_memory()
    yield measured(
        "GPU memory", f"{free / GIBIBYTE:.1f} of {total / GIBIBYTE:.1f} GiB free", free=free, total=total
    )
    runtime = ctypes.c_int()
    ctypes.CDLL(RUNTIME).cudaRuntimeGetVersion(ctypes.byref(runtime))
    versions = {
        "onnxruntime": ort.__version__,
        "CUDA": f"{runtime.value // 1000}.{runtime.value % 1000 // 10}",
        "cuDNN": cudnn_version(),
        "quatserve": metadata.version("quatserve"),
    }
    yield measured("versions", ", ".join(f"{name} {found}" for name, found in versions.items()), **versions)


def gpu_memory() -> tuple[int, int]:
    """Bytes of GPU memory, free and in all."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ctypes.CDLL(RUNTIME).cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value

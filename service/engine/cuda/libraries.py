"""Loads the CUDA libraries of the gpu extra, and names the one that is missing.

onnxruntime writes the name to stderr only, and says no more than that operators are left to the CPU.
"""

import ctypes
from pathlib import Path

import onnxruntime as ort

from quatserve.service.engine.cuda.causes import LIBRARY
from quatserve.service.errors import DeviceUnavailableError

CUDNN = "libcudnn.so.9"  # loaded by name at the first convolution, so not among the provider's needs
PROVIDER = Path(ort.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
SHARED = PROVIDER.with_name("libonnxruntime_providers_shared.so")  # the provider's symbols, not its needs


def load_libraries() -> None:
    """Load everything a CUDA session will need, or raise DeviceUnavailableError with the library's name."""
    ort.preload_dlls(directory="")
    try:
        ctypes.CDLL(str(SHARED), ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(PROVIDER))
        cudnn_version()
    except OSError as error:
        raise DeviceUnavailableError(f"{LIBRARY} ({error})") from error


def cudnn_version() -> str:
    """The version that cuDNN reports of itself; it needs no driver for that."""
    version: int = ctypes.CDLL(CUDNN).cudnnGetVersion()
    return f"{version // 10_000}.{version % 10_000 // 100}.{version % 100}"

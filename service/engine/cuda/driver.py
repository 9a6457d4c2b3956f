"""Asks the NVIDIA driver whether CUDA can work here: in milliseconds, before gigabytes of libraries load.

A service that cannot have its GPU then ends at once, and the container engine's growing pauses between
restarts take hold.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quatserve.service.engine.cuda.causes import (
    ARCHITECTURE,
    CUDA_MAJOR,
    NO_GPU,
    OF_CODE,
    OLD_DRIVER,
    UNKNOWN,
)
from quatserve.service.errors import DeviceUnavailableError, NoGpuError

LIBRARY = "libcuda.so.1"
RELEASE_FILE = Path("/proc/driver/nvidia/version")
CAPABILITIES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0))  # that onnxruntime-gpu has code for
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76  # CUdevice_attribute
NAME_BYTES = 128
NO_DEVICE = 100  # of cuInit


@dataclass(frozen=True)
class Gpu:
    """The GPU that sessions run on: the first that the process may see."""

    name: str
    capability: tuple[int, int]
    driver_cuda: tuple[int, int]  # the newest CUDA that the driver supports


def has_code_for(capability: tuple[int, int]) -> bool:
    """Code for 8.6 runs on 8.7 too, but on no other major version: the wheel holds no PTX to compile."""
    return any(capability[0] == major and capability[1] >= minor for major, minor in CAPABILITIES)


def find_gpu(load: Callable[[str], Any] = ctypes.CDLL) -> Gpu:
    """The GPU, or DeviceUnavailableError with cause and remedy."""
    try:
        driver = load(LIBRARY)
    except OSError as error:
        raise NoGpuError(
            "no NVIDIA driver is visible: in a container, run it with a GPU (--gpus all); on the host, "
            f"install the driver ({error})"
        ) from error
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))  # answers before cuInit
    supported = version.value // 1000, version.value % 1000 // 10
    if 0 < supported[0] < CUDA_MAJOR:
        raise DeviceUnavailableError(f"{OLD_DRIVER} (it supports CUDA {supported[0]}.{supported[1]})")
    if code := driver.cuInit(0):
        if code == NO_DEVICE:
            raise NoGpuError(str(NO_GPU))
        raise DeviceUnavailableError(f"{OF_CODE.get(code, UNKNOWN)} (cuInit returned {code})")
    gpu = Gpu(*_first_device(driver), supported)
    if not has_code_for(gpu.capability):
        major, minor = gpu.capability
        raise DeviceUnavailableError(f"{ARCHITECTURE} ({gpu.name} has {major}.{minor})")
    return gpu


def _first_device(driver: Any) -> tuple[str, tuple[int, int]]:
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    if not count.value:
        raise NoGpuError(str(NO_GPU))
    name, major, minor = ctypes.create_string_buffer(NAME_BYTES), ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGetName(name, NAME_BYTES, 0)
    driver.cuDeviceGetAttribute(ctypes.byref(major), CAPABILITY_MAJOR, 0)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), CAPABILITY_MINOR, 0)
    return name.value.decode(errors="replace"), (major.value, minor.value)


def driver_release(file: Path = RELEASE_FILE) -> str:
    """The release of the kernel's driver, such as 580.95.05; empty if it does not say."""
    try:
        words = file.read_text().split()
    except OSError:
        return ""
    return next((word for word in words if word.count(".") >= 1 and word[0].isdigit()), "")

"""What is asked of the driver, and what its answers mean; `make check-gpu-install` has a compiled driver."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quatserve.service.engine.cuda.driver import (
    CAPABILITY_MAJOR,
    Gpu,
    driver_release,
    find_gpu,
    has_code_for,
)
from quatserve.service.errors import DeviceUnavailableError


def driver(
    version: int = 13000, init: int = 0, count: int = 1, capability: tuple[int, int] = (8, 9)
) -> SimpleNamespace:
    """libcuda as ctypes shows it: values go through references."""

    def write(value: int) -> Callable[..., int]:
        def call(reference: Any) -> int:
            reference._obj.value = value
            return 0

        return call

    def name(buffer: Any, _length: int, _device: int) -> int:
        buffer.value = b"Some GPU"
        return 0

    return SimpleNamespace(
        cuDriverGetVersion=write(version),
        cuInit=lambda _flags: init,
        cuDeviceGetCount=write(count),
        cuDeviceGetName=name,
        cuDeviceGetAttribute=lambda value, attribute, _device: write(
            capability[attribute != CAPABILITY_MAJOR]
        )(value),
    )


def test_a_gpu_is_described() -> None:
    assert find_gpu(lambda _: driver(13010)) == Gpu("Some GPU", (8, 9), (13, 1))


@pytest.mark.parametrize(
    ("found", "cause", "remedy"),
    [
        (driver(12080), "too old for CUDA 13", r"driver 580 or newer.*supports CUDA 12\.8"),
        (driver(init=100), "shows no GPU", "--gpus all"),
        (driver(init=803), "driver was updated", "reboot"),
        (driver(init=802), "fabric is not ready", "nvidia-fabricmanager"),
        (driver(init=804), "forward compatibility", "driver 580"),
        (driver(init=46), "taken by another process", "compute mode"),
        (driver(init=12345), "cannot start CUDA", r"reboot.*cuInit returned 12345"),
        (driver(count=0), "shows no GPU", "--gpus all"),
        (driver(capability=(7, 0)), "no code for this GPU", r"gpu-host.md.*Some GPU has 7\.0"),
        (driver(capability=(10, 0)), "no code for this GPU", r"Some GPU has 10\.0"),
    ],
)
def test_a_refusal_names_cause_and_remedy(found: Any, cause: str, remedy: str) -> None:
    with pytest.raises(DeviceUnavailableError, match=f"{cause}.*{remedy}"):
        find_gpu(lambda _: found)


def test_a_machine_without_a_driver_is_told_so() -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    with pytest.raises(DeviceUnavailableError, match=r"no NVIDIA driver.*--gpus all.*libcuda\.so\.1: cannot"):
        find_gpu(missing)


def test_code_runs_within_its_major_version_only() -> None:
    asked = [(7, 0), (7, 5), (8, 0), (8, 7), (9, 0), (10, 0), (12, 0), (12, 1)]
    assert [each for each in asked if not has_code_for(each)] == [(7, 0), (10, 0)]


def test_the_release_of_the_driver_is_read_where_the_kernel_shows_it(tmp_path: Path) -> None:
    file = tmp_path / "version"
    assert driver_release(file) == ""
    file.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (builder@host)\n"
        "GCC version:  gcc version 13.3.0\n"
    )
    assert driver_release(file) == "580.95.05"

"""Makes glibc keep freed memory; by default it returns large tensors to the kernel after every step.

Page faults then dominate training on a CPU. The settings are read when a process starts, so the command
starts itself anew with them, once.
"""

import os
import platform
import sys

SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": str(4 * 2**30),
    "MALLOC_TRIM_THRESHOLD_": str(8 * 2**30),
    "MALLOC_TOP_PAD_": str(2**30),
}


def keep_memory() -> None:
    """Replace this process by `python -m quatserve` with the settings; does nothing without glibc."""
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in SETTINGS):
        return
    os.execve(sys.executable, [sys.executable, "-m", "quatserve", *sys.argv[1:]], {**os.environ, **SETTINGS})

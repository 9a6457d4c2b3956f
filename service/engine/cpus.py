"""How many processors this process may really use, and which of its threads come first."""

import math
import os
import sys
import threading
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")  # in a container of its own, the root
STEP = 5  # of niceness: the event loop then gets three times the share where both want a processor


def _quota_v2(root: Path, own: Path) -> float | None:
    """The least of those of the process's group and of the groups above it."""
    lines = own.read_text().splitlines()
    group = root / next(line[4:] for line in lines if line.startswith("0::/"))
    limits = [
        (each / "cpu.max").read_text().split()[:2]
        for each in (group, *group.parents)
        if each.is_relative_to(root) and (each / "cpu.max").is_file()
    ]
    return min((int(quota) / int(period) for quota, period in limits if quota != "max"), default=None)


def _quota_v1(root: Path, _: Path) -> float | None:
    quota = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
    period = int((root / "cpu" / "cpu.cfs_period_us").read_text())
    return None if quota <= 0 else quota / period


def quota(root: Path = CGROUP_ROOT, own: Path = OWN_GROUP) -> float | None:
    """Processors granted by the control group, or None where there is no limit."""
    for read in (_quota_v2, _quota_v1):
        try:
            if (granted := read(root, own)) is not None:
                return granted
        except (OSError, ValueError, StopIteration):
            continue
    return None


def usable_cpus(root: Path = CGROUP_ROOT) -> int:
    """The smaller of affinity and quota, at least one.

    More threads than the quota allows are throttled together: every batch then waits for the slowest.
    """
    affinity = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    granted = quota(root)
    return affinity if granted is None else max(1, min(affinity, math.ceil(granted)))


def step_back() -> None:
    """Put this thread, and those it starts, behind the event loop; a second time changes nothing.

    Whoever asks for health, or has to be refused, is then answered at once while the models compute.
    """
    if sys.platform == "linux":  # elsewhere niceness belongs to the whole process
        main_thread = os.getpriority(os.PRIO_PROCESS, os.getpid())
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), main_thread + STEP)

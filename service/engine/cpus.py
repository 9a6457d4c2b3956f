"""How many CPUs this process may use, and the priority of its compute threads."""

import math
import os
import sys
import threading
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")  # inside a container it names the root
NICENESS_STEP = 5  # the event loop then gets three times the share of a contended CPU


def _quota_v2(root: Path, own: Path) -> float | None:
    """The smallest quota of the process's group and its parents."""
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
    """The CPUs that the control group grants, or None without a limit."""
    for read in (_quota_v2, _quota_v1):
        try:
            if (granted := read(root, own)) is not None:
                return granted
        except (OSError, ValueError, StopIteration):
            continue
    return None


def usable_cpus(root: Path = CGROUP_ROOT) -> int:
    """The smaller of affinity and quota, at least one.

    With more threads than the quota allows, all are throttled and every batch waits for the slowest.
    """
    affinity = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    granted = quota(root)
    return affinity if granted is None else max(1, min(affinity, math.ceil(granted)))


def lower_priority() -> None:
    """Give this thread, and the threads it starts, a lower priority than the event loop. Idempotent.

    Health checks and refusals are then answered at once while the models compute.
    """
    if sys.platform == "linux":  # on other systems niceness is per process
        main_thread = os.getpriority(os.PRIO_PROCESS, os.getpid())
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), main_thread + NICENESS_STEP)

"""Threads that compute stand behind the one that answers: seen from outside, in /proc."""

import os
import threading
from pathlib import Path

from quatserve.service.engine.cpus import NICENESS_STEP, lower_priority
from tests.service.conftest import Start
from tests.service.harness import RunningService, plain


def niceness(running: RunningService) -> dict[int, int]:
    """Thread -> niceness (proc(5), field 19)."""
    stats = [task / "stat" for task in Path(f"/proc/{running.process.pid}/task").iterdir()]
    fields = {int(path.parent.name): path.read_text().rpartition(")")[2].split() for path in stats}
    return {thread: int(found[16]) for thread, found in fields.items()}


def test_stepping_back_concerns_one_thread_alone() -> None:
    before, inside = os.getpriority(os.PRIO_PROCESS, 0), list[int]()

    def work() -> None:
        lower_priority()
        inside.append(os.getpriority(os.PRIO_PROCESS, 0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [min(19, before + NICENESS_STEP)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_models_and_images_are_computed_behind_the_event_loop(start: Start) -> None:
    running = start(threads=3)
    large = plain((9, 9, 9), (300, 300))  # too large to be decoded on the loop
    assert running.client.post("/classify", files={"file": large}).status_code == 200
    found = niceness(running)
    loop = found[running.process.pid]
    assert loop == os.getpriority(os.PRIO_PROCESS, 0)
    behind = [thread for thread, nice in found.items() if nice == min(19, loop + NICENESS_STEP)]
    computing = 2 * 2 + 2 + 1  # two more threads of either session, one that runs it, one that decoded
    assert len(behind) == (computing if loop < 19 else len(found))  # behind 19 there is nothing

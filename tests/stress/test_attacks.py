"""A short version of every attack. What is a matter of speed or memory is left to `make stress`."""

import asyncio
from pathlib import Path

import pytest

from tests.stress.attacks import ATTACKS
from tests.stress.counted_service import count_alive
from tests.stress.record import Record
from tests.stress.reliability import page

HERE = [name for name in ATTACKS if name != "schema"]  # that one is short in tests/service/test_schema.py


def missed(record: Record) -> list[str]:
    """The promises that were broken, with the figure that shows it."""
    return [f"{check.promise}: {check.figure}" for check in record.checks if not (check.met or check.quiet)]


@pytest.mark.parametrize("name", HERE)
def test_what_must_hold_holds(name: str, tmp_path: Path) -> None:
    attack = ATTACKS[name]
    record = attack.run(tmp_path, **attack.short)
    assert missed(record) == []


def test_a_census_counts_what_nobody_awaits() -> None:
    async def growth() -> list[tuple[int, int]]:
        before = count_alive()
        future = asyncio.get_running_loop().create_future()
        forgotten = count_alive()
        task = asyncio.create_task(asyncio.wait_for(future, None))
        await asyncio.sleep(0)
        awaited = count_alive()
        future.set_result(None)
        await task
        return [
            (alive.tasks - before.tasks, alive.futures - before.futures) for alive in (forgotten, awaited)
        ]

    assert asyncio.run(growth()) == [(0, 1), (1, 0)]


def test_the_page_tells_what_was_missed() -> None:
    good, bad = Record("kind"), Record("unkind")
    good.check("nothing happens", "nothing", met=True)
    bad.answered(200, 0.25)
    bad.check("at most | one", 2, met=False)
    text = page([good, bad], seconds=3.0, load=0.1)
    assert "| kind | nothing happens | nothing | met |" in text
    assert "| unkind | at most \\| one | 2 | **missed** |" in text
    assert "1 of 2 attacks met every promise" in text
    assert "| unkind | 1 | 0.0 | 250.0 | 250.0 | | | 0 of 1 | **missed** |" in text

"""`python -m tests.stress`: every attack at full length, within ten minutes, over loopback.

Writes docs/reliability.md; exit code 0 where every promise was met. Wants a machine with nothing else to do.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.service.harness import REPOSITORY
from tests.stress.attacks import ATTACKS, Attack
from tests.stress.record import Record
from tests.stress.reliability import page

LIMIT_S = 600


class OutOfTimeError(KeyboardInterrupt):
    """Of that kind because nothing on the way up, an event loop included, keeps it for itself."""


def out_of_time(*_: object) -> None:
    raise OutOfTimeError(f"the run took more than {LIMIT_S} s")


def broken_off(name: str, error: BaseException) -> Record:
    record = Record(name)
    record.check("the attack is carried out", f"{type(error).__name__}: {error}", met=False)
    return record


def carried_out(name: str, attack: Attack, *, short: bool) -> Record:
    """The attack's record; where the attack itself breaks off, one that says so."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return attack.run(Path(folder), **(attack.short if short else attack.long))
        except (Exception, OutOfTimeError) as error:  # noqa: BLE001  # the others are worth their figures
            return broken_off(name, error)


def show(record: Record) -> None:
    print(f"{record.attack}: {record.total():,} requests, {record.seconds:.1f} s", flush=True)
    for check in record.checks:
        print(f"  {'met   ' if check.met else 'MISSED'} {check.promise}: {check.figure}", flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description=__doc__)
    parser.add_argument("--short", action="store_true", help="the lengths of the test suite, for a trial")
    parser.add_argument("--only", choices=ATTACKS, action="append", help="this attack; may be repeated")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "reliability.md")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(LIMIT_S)
    load, begun, records = os.getloadavg()[0], time.monotonic(), list[Record]()
    for name in options.only or ATTACKS:
        if time.monotonic() - begun < LIMIT_S:
            records.append(carried_out(name, ATTACKS[name], short=options.short))
        else:
            records.append(broken_off(name, OutOfTimeError("no time was left")))
        show(records[-1])
    signal.alarm(0)
    options.out.write_text(page(records, time.monotonic() - begun, load))
    return 0 if all(record.held for record in records) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

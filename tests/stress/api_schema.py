"""Whatever the OpenAPI schema allows, and what it does not: schemathesis with all of its checks."""

import re
from pathlib import Path

import httpx

from tests.service.artifacts import CLASSIFIER, SEGMENTER, write_both
from tests.service.fuzzing import fuzz
from tests.stress.record import Record, measured, under_attack

SEED = 1
KEY = "sesame"  # with keys, the routes of the repository are there too
CASES = re.compile(r"(\d+) generated, (\d+) (?:found|passed)")
OPERATIONS = re.compile(r"Selected: (\d+)/(\d+)\s+Tested: (\d+)")


def attack(root: Path, *, examples: int) -> Record:
    models, notes = root / "models", root / "notes"
    write_both(models)
    notes.mkdir()
    record = Record("schemathesis, all checks")
    with under_attack(record, models, access_log=False, api_keys=KEY) as running, measured(record, running):
        options = ("--max-examples", str(examples), "--seed", str(SEED), "--header", f"x-api-key: {KEY}")
        ended = fuzz(running.url, notes, *options)
        for name in (CLASSIFIER, SEGMENTER):  # it may have unloaded them, and nothing served is not ready
            url = f"{running.url}/v2/repository/models/{name}/load"
            httpx.post(url, headers={"x-api-key": KEY}).raise_for_status()
    cases, operations = CASES.search(ended.stdout), OPERATIONS.search(ended.stdout)
    assert cases is not None, ended.stdout + ended.stderr
    assert operations is not None, ended.stdout
    record.untimed = int(cases[1])
    failed = int(cases[1]) - int(cases[2])
    record.check(
        "no case fails", cases[0] if ended.returncode == 0 else ended.stdout, ended.returncode == failed == 0
    )
    tested = f"{operations[3]} of {operations[2]}"
    record.check("every operation is tried", tested, operations[1] == operations[2] == operations[3])
    return record

"""No module is loaded under two names: `service.x` beside `quatserve.service.x` would be two classes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WRONG = re.compile(r"^(service|training|export)\.")


def imported(*arguments: str) -> set[str]:
    """Every module that the process and its children import; Python itself reports them on stderr."""
    environment = os.environ | {"PYTHONPROFILEIMPORTTIME": "1"}
    command = [sys.executable, "-m", *arguments]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return {line.rpartition("|")[2].strip() for line in run.stderr.splitlines() if "import time:" in line}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("service", "--help"), "quatserve.service.settings"),
        (("service", "classify", "--help"), "quatserve.service.bulk.engine"),
        (("training", "recipes"), "quatserve.training.networks.residual"),
        (("export", "build", "--help"), "quatserve.service.artifact"),
        (("quatserve", "networks"), "quatserve.training.networks.residual"),
        (("torch.distributed.run", "-m", "training", "recipes"), "quatserve.training.networks.residual"),
        (("tests.packaging.spawning",), "quatserve.training.loop.ranks"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_every_module_has_one_name(arguments: tuple[str, ...], expected: str) -> None:
    names = imported(*arguments)
    assert expected in names
    assert not [name for name in names if WRONG.match(name)]


def test_a_second_name_would_be_seen() -> None:
    assert WRONG.match("service.settings")
    assert not WRONG.match("quatserve.service.settings")
    assert {"service.settings"} <= imported("timeit", "-n1", "-r1", "import service.settings")

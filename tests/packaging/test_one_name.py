"""No module is loaded under two names: `service.x` beside `quatserve.service.x` would be two classes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.running_service import running
from tests.service.artifacts import CLASSIFIER, write_both
from tests.service.harness import plain
from tests.training.tiny_command import write_tiny_data

ROOT = Path(__file__).parents[2]
WRONG = re.compile(r"^(service|training|export)\.")
REPORT_IMPORTS = {"PYTHONPROFILEIMPORTTIME": "1"}  # children inherit it


def imports_in(report: str) -> set[str]:
    """The modules that a process and its children imported, by Python's own report on standard error."""
    return {line.rpartition("|")[2].strip() for line in report.splitlines() if "import time:" in line}


def imported(*arguments: object) -> set[str]:
    command = [sys.executable, "-m", *map(str, arguments)]
    run = subprocess.run(command, cwd=ROOT, env=os.environ | REPORT_IMPORTS, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    return imports_in(run.stderr)


def check(names: set[str], expected: str) -> None:
    assert expected in names
    assert not [name for name in names if WRONG.match(name)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("service", "--help"), "quatserve.service.settings"),
        (("training", "recipes"), "quatserve.training.networks.residual"),
        (("quatserve", "recipes"), "quatserve.training.networks.residual"),
        (("torch.distributed.run", "-m", "training", "recipes"), "quatserve.training.networks.residual"),
        (("tests.packaging.spawning",), "quatserve.training.loop.ranks"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_each_entry_point_loads_one_name(arguments: tuple[str, ...], expected: str) -> None:
    check(imported(*arguments), expected)


def test_a_rank_that_trains_loads_one_name(tmp_path: Path) -> None:
    write_tiny_data(tmp_path)
    rank = ("torch.distributed.run", "-m", "tests.training.tiny_command", "fit", "tiny-cifar")
    names = imported(*rank, "--data", tmp_path, "--out", tmp_path / "run", "--compile", "off")
    check(names, "quatserve.training.loop.trainer")


def test_the_service_loads_one_name_and_no_torch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """While it serves, and while `classify` and `inspect` work on the same model."""
    models, photo = write_both(tmp_path / "models"), tmp_path / "a.png"
    photo.write_bytes(plain((1, 2, 3)))
    command = [sys.executable, "-m", "service", "--models-dir", str(models)]
    with running(command, cwd=ROOT, PYTHONPROFILEIMPORTTIME="1"):
        pass
    names = imports_in(capfd.readouterr().err)
    check(names, "quatserve.service.web.inference")
    assert "torch" not in names
    bulk = imported("service", "classify", photo, "--models-dir", models, "--out", tmp_path / "r.csv")
    check(bulk, "quatserve.service.bulk.pipeline")
    assert bulk.isdisjoint({"torch", "starlette", "fastapi", "prometheus_client"})
    check(imported("export", "inspect", models / CLASSIFIER / "1"), "quatserve.export.artifact.inspection")


def test_a_second_name_would_be_seen() -> None:
    assert {"service.settings"} <= imported("timeit", "-n1", "-r1", "import service.settings")
    with pytest.raises(AssertionError):
        check({"service.settings", "quatserve"}, "quatserve")

"""Who imports whom: the contracts of pyproject.toml, and what a process really loads."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_import_linter_keeps_every_contract() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    contracts = (ROOT / "pyproject.toml").read_text().count("[[tool.importlinter.contracts]]")
    assert f"{contracts} kept, 0 broken" in run.stdout


def loaded_after(statement: str) -> set[str]:
    """Names of all modules in memory after `statement` in a process of its own."""
    script = f"import sys; {statement}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(run.stdout.split())


@pytest.mark.parametrize("name", ["quatserve.service.commands", "quatserve.service.app"])
def test_serving_loads_no_torch(name: str) -> None:
    loaded = loaded_after(f"import {name}")
    assert name in loaded
    assert loaded.isdisjoint({"torch", "onnx", "quatserve.training", "quatserve.export"})

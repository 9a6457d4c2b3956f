"""The core stands on torch alone: no file formats, no pictures, no command line, no third-party surprises."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("PIL", "matplotlib", "h5py", "tqdm", "safetensors")


def loaded_by(module: str) -> set[str]:
    """Top-level packages in memory after importing `module` in a process of its own, less those of torch."""
    script = (
        "import sys, torch; before = set(sys.modules); "
        f"import {module}; print(*{{name.partition('.')[0] for name in set(sys.modules) - before}})"
    )
    command = [sys.executable, "-c", script]
    return set(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "quatserve.training.networks.residual",
        "quatserve.training.loop.average",
        "quatserve.training.loop.ranks",
    ],
)
def test_the_core_needs_torch_and_nothing_else(module: str) -> None:
    loaded = loaded_by(module)
    assert "quatserve" in loaded
    assert not loaded & set(HEAVY)

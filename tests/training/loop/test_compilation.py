"""The training step as `fit` compiles it by default, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quatserve.training.loop import run as runs
from tests.training.tiny_command import write_tiny_data

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(600)  # the compiler takes its time, more of it beside other work
def test_the_compiled_step_trains_what_the_plain_one_trains(tmp_path: Path) -> None:
    """Or says that there is no compiler, and goes on without."""
    write_tiny_data(tmp_path / "data")
    found = {}
    for choice in ("auto", "off"):
        run = tmp_path / choice
        where = ["--data", str(tmp_path / "data"), "--out", str(run), "--epochs", "1", "--device", "cpu"]
        command = [sys.executable, "-m", "tests.training.tiny_command", "fit", "tiny-cifar", *where]
        cache = tmp_path / f"cache-{choice}"
        done = subprocess.run(
            [*command, "--compile", choice],
            cwd=ROOT,
            env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache)},
            capture_output=True,
            text=True,
            check=True,
        )
        compiled = any(cache.rglob("*.so"))
        assert compiled == (choice == "auto" and "goes on uncompiled" not in done.stderr)
        (found[choice],) = runs.read_metrics(run)
    assert found["auto"]["images"] == found["off"]["images"] == 40
    assert found["auto"]["loss"] == pytest.approx(found["off"]["loss"], rel=1e-4)
    assert found["auto"]["validation_score"] == found["off"]["validation_score"]

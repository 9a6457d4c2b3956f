"""`make serve`, the first command a newcomer types."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.running_service import running
from tests.service.artifacts import write_both

ROOT = Path(__file__).parents[2]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """`make serve` with an environment that is already made: this one, so that nothing is downloaded."""
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "venv/.installed").touch()
    return ["make", "serve", f"VENV_SERVE={tmp_path}/venv"]


@pytest.fixture
def models(tmp_path: Path) -> str:
    return str(write_both(tmp_path / "models"))


def test_it_serves_on_the_cpu(command: list[str], models: str) -> None:
    ctrl_c = signal.SIGINT  # make, when interrupted, dies of it once its children are gone
    with running(command, cwd=ROOT, stop=ctrl_c, exit_code=-ctrl_c, QUATSERVE_MODELS_DIR=models) as service:
        assert {model["provider"] for model in service.readiness["models"]} == {"CPUExecutionProvider"}


def test_a_taken_port_is_reported(command: list[str], models: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        settings = {"QUATSERVE_MODELS_DIR": models, "QUATSERVE_PORT": port}
        run = subprocess.run(command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True)
    assert run.returncode != 0
    said = [line for line in run.stderr.splitlines() if port in line]
    assert any("taken" in line or "in use" in line for line in said), run.stderr

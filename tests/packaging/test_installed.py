"""Every command from an installed wheel, outside any checkout."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urljoin
from urllib.request import urlopen

import pytest

from quatserve.__main__ import COMMANDS
from tests.packaging.import_statements import PACKAGES
from tests.packaging.running_service import running
from tests.packaging.wheel import build_wheel
from tests.training.tiny_command import write_tiny_data

ROOT = Path(__file__).parents[2]
CAT, ROAD = (ROOT / "service/samples" / name for name in ("cat.png", "road.jpg"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel's files and its console script."""
    work = tmp_path_factory.mktemp("wheel")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("quatserve", *PACKAGES):
        shutil.copytree(ROOT / name, work / "source" / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, work / "source")
    build_wheel(work / "source", work)
    install = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", work / "site")
    subprocess.run([*install, next(work.glob("*.whl"))], check=True)
    return work / "site"


@pytest.fixture
def outside(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory in which `quatserve` is the installed one; children inherit that."""
    monkeypatch.setenv("PYTHONPATH", str(installed))
    monkeypatch.setenv("PATH", f"{installed / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_installed_package_is_the_one_that_runs(installed: Path, outside: Path) -> None:
    for name in ("quatserve", *(f"quatserve.{package}" for package in PACKAGES)):
        found = run(sys.executable, "-c", f"import {name}; print({name}.__file__)", cwd=outside)
        assert Path(found.strip()).is_relative_to(installed)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str, outside: Path) -> None:
    assert run("quatserve", command, "--help", cwd=outside).startswith(f"usage: quatserve {command}")


def test_shipped_models_are_served_and_work_through_files(outside: Path) -> None:
    models = ROOT / "models"
    with running(["quatserve", "serve"], cwd=outside, QUATSERVE_MODELS_DIR=str(models)) as service:
        assert len(service.readiness["models"]) == 2
        page = f"http://127.0.0.1:{service.port}/"
        with urlopen(page, timeout=10) as response:
            files = re.findall(r'(?:src|href)="((?!http)[^#"]+)"', response.read().decode())
        assert files
        for file in files:
            with urlopen(urljoin(page, file), timeout=10) as response:
                assert response.status == 200
    run("quatserve", "classify", CAT, "--models-dir", models, "--out", "results.csv", cwd=outside)
    assert ",cat," in (outside / "results.csv").read_text()
    run("quatserve", "segment", ROAD, "--models-dir", models, "--out", "masks", cwd=outside)
    assert (outside / "masks/road-mask.png").exists()
    assert "cifar10-quaternion" in run("quatserve", "recipes", cwd=outside)


@pytest.mark.timeout(300)  # four processes import torch
def test_a_network_is_trained_exported_and_served(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_data(outside / "data")
    fit = (sys.executable, "-m", "tests.training.tiny_command", "fit", "tiny-road", "--compile", "off")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}{os.pathsep}{ROOT}")  # for `tests`
        run(*fit, "--data", "data", "--out", "run", cwd=outside)
    run("quatserve", "evaluate", "run", "--data", "data", cwd=outside)
    artifact = Path("models/tiny-road/1")
    run("quatserve", "build", "run", "--data", "data", "--out", artifact, "--max-loss", 100, cwd=outside)
    run("quatserve", "verify", artifact, cwd=outside)
    with running(["quatserve", "serve"], cwd=outside) as service:
        assert [model["name"] for model in service.readiness["models"]] == ["tiny-road"]

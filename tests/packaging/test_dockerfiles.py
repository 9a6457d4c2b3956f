"""What can be checked of the Dockerfiles without Docker."""

import fnmatch
import json
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from dockerfile_parse import DockerfileParser

from quatserve.service.command_line import from_environment
from quatserve.service.settings import Settings
from tests.packaging.service_image import copy
from tests.packaging.wheel import build_wheel

ROOT = Path(__file__).parents[2]
FILES = ["service.Dockerfile", "training.Dockerfile"]


def instructions(file: str, kind: str) -> list[str]:
    parsed = DockerfileParser(str(ROOT / "docker" / file), cache_content=True).structure
    return [step["value"] for step in parsed if step["instruction"] == kind]


def copied_from_here(file: str) -> list[str]:
    steps = [shlex.split(value) for value in instructions(file, "COPY") if not value.startswith("--from")]
    return [source for step in steps for source in step[:-1]]


@pytest.mark.parametrize("file", FILES)
def test_hadolint_reports_nothing(file: str) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    run = subprocess.run([hadolint, ROOT / "docker" / file], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "")


@pytest.mark.parametrize("file", FILES)
def test_it_runs_as_an_unprivileged_user(file: str) -> None:
    assert instructions(file, "USER") == ["10001:10001"]


@pytest.mark.parametrize("file", FILES)
def test_what_it_copies_exists_and_passes_dockerignore(file: str) -> None:
    kept = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    for source in copied_from_here(file):
        assert (ROOT / source).exists()
        assert any(fnmatch.fnmatch(source, pattern) for pattern in kept), source


def test_dockerignore_admits_nothing_else() -> None:
    kept = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert set(kept) == {source for file in FILES for source in copied_from_here(file)}


@pytest.mark.parametrize(
    ("file", "packages"),
    [("service.Dockerfile", {"service"}), ("training.Dockerfile", {"service", "training", "export"})],
)
def test_what_it_copies_builds_the_one_package(file: str, packages: set[str], tmp_path: Path) -> None:
    """The links to packages that are not copied dangle, and are left out."""
    source = tmp_path / "source"
    for name in copied_from_here(file):
        copy(ROOT / name, source / name)
    build_wheel(source, tmp_path)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    installed = {name for name in names if ".dist-info/" not in name}
    assert "quatserve/__main__.py" in installed
    assert {name.split("/")[0] for name in installed} == {"quatserve"}
    assert {name.split("/")[1] for name in installed if name.count("/") > 1} == packages


@pytest.mark.parametrize("file", FILES)
def test_the_extras_it_installs_exist(file: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r'"\.\[(.+?)\]"', " ".join(instructions(file, "RUN")))
    assert named
    for extra in named:
        assert {"gpu", "cpu"} <= extras.keys() if extra == "${RUNTIME}" else extra in extras


@pytest.mark.parametrize("file", FILES)
def test_everything_it_installs_is_pinned(file: str) -> None:
    installs = [step for step in instructions(file, "RUN") if "pip install" in step]
    assert installs
    assert all("--constraint constraints.txt" in step or "--no-deps" in step for step in installs)


def test_the_service_image_sets_only_known_settings() -> None:
    pairs = [
        pair.split("=", 1) for value in instructions("service.Dockerfile", "ENV") for pair in value.split()
    ]
    settings = Settings.model_validate(from_environment(dict(pairs)))
    assert (settings.host, settings.port, str(settings.models_dir)) == ("0.0.0.0", 8000, "/models")


def test_image_and_compose_have_one_health_check_without_a_shell() -> None:
    (check,) = instructions("service.Dockerfile", "HEALTHCHECK")
    command = json.loads(check.partition("CMD ")[2])
    assert command[0] == "python"
    assert "/readyz" in command[-1]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert compose["services"]["service"]["healthcheck"]["test"] == ["CMD", *command]

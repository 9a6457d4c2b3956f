"""The command `quatserve` itself: what it lists, and what it says where a part is not installed."""

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from quatserve.__main__ import COMMANDS, main

ROOT = Path(__file__).parents[2]


def python(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True)


def test_the_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    page = capsys.readouterr().out
    assert re.findall(r"^  (\S+)", page, re.MULTILINE) == list(COMMANDS)
    assert main([]) == 2
    assert capsys.readouterr().out == page


def test_the_version_is_that_of_the_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == metadata.version("quatserve") + "\n"


def test_an_unknown_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serv"]) == 2
    assert capsys.readouterr().err == "error: there is no command 'serv'; see `quatserve --help`\n"


@pytest.mark.parametrize(
    ("missing", "words", "remedy"),
    [
        ("onnxruntime", ["serve", "--port", "0"], "the extra cpu (pip install 'quatserve[cpu]'), or gpu"),
        ("onnxruntime", ["classify", "x.png", "--out", "r.csv"], "the extra cpu"),
        ("torch", ["networks"], "the extra training (pip install 'quatserve[training]')"),
        ("onnx", ["verify", "models/none/1"], "the extra export (pip install 'quatserve[export]')"),
    ],
)
def test_a_missing_library_is_one_line_with_the_extra(missing: str, words: list[str], remedy: str) -> None:
    script = (
        f"import sys; sys.modules[{missing!r}] = None; "  # as if it were not installed
        f"from quatserve.__main__ import main; sys.exit(main({words!r}))"
    )
    run = python("-c", script)
    assert run.returncode == 2
    assert run.stderr.startswith(f"error: {missing} is not installed: install ")
    assert remedy in run.stderr
    assert len(run.stderr.splitlines()) == 1


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """The package `quatserve` without the directories that its links lead to."""
    shutil.copytree(ROOT / "quatserve", tmp_path / "quatserve", symlinks=True)
    return tmp_path


@pytest.mark.parametrize("link", ["dangling", "text"])
def test_a_checkout_without_links_is_one_line(alone: Path, link: str) -> None:
    if link == "text":  # as git writes links where the file system has none
        (alone / "quatserve/service").unlink()
        (alone / "quatserve/service").write_text("../service")
    run = python("-S", "-m", "quatserve", "serve", cwd=alone)  # -S: without the installed package
    assert run.returncode == 2
    assert run.stderr.startswith("error: this checkout has no symbolic links: ")
    assert len(run.stderr.splitlines()) == 1


def test_an_image_for_serving_does_not_train(alone: Path) -> None:
    (alone / "quatserve/training").unlink()
    run = python("-S", "-m", "quatserve", "recipes", cwd=alone)
    assert run.returncode == 2
    assert run.stderr.startswith("error: this installation has no quatserve.training")
    assert len(run.stderr.splitlines()) == 1

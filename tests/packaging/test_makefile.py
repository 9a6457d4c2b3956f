"""`make` fails with one sentence that says what the machine lacks."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "MAKEFLAGS"} | environment,
        capture_output=True,
        text=True,
    )


def interpreter(path: Path, *, version: str = "3.11.7", venv: bool = True) -> Path:
    """A fake python3 that answers the Makefile like an older or incomplete one."""
    path.write_text(
        f"""#!/bin/sh
case "$*" in
    -V) echo "Python {version}" ;;
    *version_info*) exec {sys.executable} -c 'exit({tuple(map(int, version.split(".")))} < (3, 11))' ;;
    *ensurepip*) exit {int(not venv)} ;;
    *) exec {sys.executable} "$@" ;;
esac
"""
    )
    path.chmod(0o755)
    return path


def test_help_lists_every_target() -> None:
    listed = make("help").stdout
    declared = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert declared is not None
    assert [line.split()[0] for line in listed.splitlines()] == declared[1].split()


def test_without_python(tmp_path: Path) -> None:
    run = make("serve", "PYTHON=no-such-python", f"VENV_SERVE={tmp_path}/venv")
    assert run.returncode != 0
    assert "There is no 'no-such-python' here. Install Python 3.11 or newer" in run.stdout


def test_python_too_old(tmp_path: Path) -> None:
    old = interpreter(tmp_path / "python", version="3.9.2")
    run = make("serve", f"PYTHON={old}", f"VENV_SERVE={tmp_path}/venv")
    assert run.returncode != 0
    assert "quatserve needs Python 3.11 or newer and this is Python 3.9.2." in run.stdout


def test_python_without_venv(tmp_path: Path) -> None:
    bare = interpreter(tmp_path / "python", venv=False)
    run = make("test", f"PYTHON={bare}", f"VENV={tmp_path}/venv")
    assert run.returncode != 0
    assert "apt install python3-venv" in run.stdout


def test_without_a_network(tmp_path: Path) -> None:
    with socket.socket() as closed:  # bound and never listening: every connection is refused
        closed.bind(("127.0.0.1", 0))
        run = make(
            "serve",
            f"PYTHON={sys.executable}",
            f"VENV_SERVE={tmp_path}/venv",
            PIP_CONFIG_FILE=os.devnull,
            PIP_FIND_LINKS="",
            PIP_EXTRA_INDEX_URL="",
            PIP_INDEX_URL=f"http://127.0.0.1:{closed.getsockname()[1]}/simple",
            PIP_RETRIES="0",
        )
    assert run.returncode != 0
    assert "The package index cannot be reached." in run.stdout
    assert not (tmp_path / "venv/.installed").exists()


def test_an_environment_is_made_once(tmp_path: Path) -> None:
    """Nothing to do while the stamp is newer than both files; a changed pin makes it again."""
    stamp = tmp_path / "venv/.installed"
    stamp.parent.mkdir()
    stamp.touch()
    question = ["-q", str(stamp), f"VENV={tmp_path}/venv"]
    assert make(*question).returncode == 0
    for file in ("pyproject.toml", "constraints.txt"):
        assert make(*question, "-W", file).returncode == 1


def test_verify_without_artifacts_says_so(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "venv").mkdir()
    for file in ("pyproject.toml", "constraints.txt", "venv/.installed"):
        (tmp_path / file).touch()
    run = make("-C", str(tmp_path), "verify", "VENV=venv")
    assert run.returncode == 0
    assert run.stdout == "models/ holds no artifact: nothing to verify.\n"

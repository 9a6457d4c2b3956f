"""Runs tests of the service with the oldest releases that `pyproject.toml` admits.

Not all tests: decoding, loading, logs, metrics and one route over HTTP use every dependency.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
TESTED = ["imaging", "engine", "telemetry", "web/test_classify.py", "web/test_parameters.py"]
LEFT_OUT = "engine/cuda"  # its tests import export, and so torch
FOR_TESTS = ["httpx", "hypothesis", "onnx", "pytest", "pytest-timeout", "python-multipart"]


def floors(project: str) -> dict[str, str]:
    """The lowest version of each dependency of the service on a CPU, by name."""
    table = tomllib.loads(project)["project"]
    wanted = map(Requirement, [*table["dependencies"], *table["optional-dependencies"]["cpu"]])
    return {
        wish.name: next(limit.version for limit in wish.specifier if limit.operator in (">=", "=="))
        for wish in wanted
    }


def constraints(pinned: str, lowest: dict[str, str]) -> str:
    """The constraints of the suite, with the floors instead of the pins of the service's dependencies.

    What they bring along is left to pip: an older pydantic needs an older pydantic-core.
    """
    lines = [
        line
        for line in pinned.splitlines()
        if not (found := re.match(r"[A-Za-z0-9._-]+", line))
        or found[0].lower().replace("_", "-") not in {*lowest, "pydantic-core"}
    ]
    return "\n".join([*lines, *(f"{name}=={version}" for name, version in lowest.items())]) + "\n"


def main() -> int:
    lowest = floors((ROOT / "pyproject.toml").read_text())
    with tempfile.TemporaryDirectory() as scratch:
        python = Path(scratch, "venv/bin/python")
        venv.create(python.parents[1], with_pip=True)
        limits = Path(scratch, "constraints.txt")
        limits.write_text(constraints((ROOT / "constraints.txt").read_text(), lowest))
        install = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--constraint",
            str(limits),
            "--editable",
            f"{ROOT}[cpu]",
        ]
        subprocess.run([python, *install, *FOR_TESTS], check=True)
        tests = [ROOT / "tests/service" / name for name in TESTED]
        ignored = f"--ignore={ROOT / 'tests/service' / LEFT_OUT}"
        done = subprocess.run([python, "-m", "pytest", "-q", ignored, *tests], cwd=ROOT, check=False)
        return done.returncode


if __name__ == "__main__":
    sys.exit(main())

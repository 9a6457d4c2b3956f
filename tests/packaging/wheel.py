"""Builds a wheel without the network."""

import subprocess
import sys
from pathlib import Path


def build_wheel(source: Path, into: Path) -> None:
    """`pip wheel` with the setuptools of this environment; it also writes into the source directory."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*command, "--wheel-dir", into, source], check=True)

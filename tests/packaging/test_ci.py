"""`.ci/run` runs every check, and installs on Debian what they need."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
STAND_IN = '#!/bin/sh\necho "${0##*/} $*" >>"$CALLS"\n'


def test_every_check_is_run_with_what_it_needs(tmp_path: Path) -> None:
    """With a PATH of a few basic tools, and a make and an apt-get that only record their calls."""
    programs, calls = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir()
    for name in ("bash", "dirname", "mktemp", "rm"):
        (programs / name).symlink_to(str(shutil.which(name)))
    for name in ("make", "apt-get"):
        (programs / name).write_text(STAND_IN)
        (programs / name).chmod(0o755)
    environment = {"PATH": str(programs), "CALLS": str(calls), "TMPDIR": str(tmp_path)}
    subprocess.run(["bash", ROOT / ".ci/run"], env=environment, check=True, capture_output=True)
    assert calls.read_text().splitlines() == [
        "make test",
        "make lint",
        "make verify",
        "make check-floors",
        "make check-image",
        "apt-get update -q",
        "apt-get install -qy --no-install-recommends prometheus",
        "make check-monitoring",
        "apt-get update -q",
        "apt-get install -qy --no-install-recommends chromium",
        "make test-browser",
    ]

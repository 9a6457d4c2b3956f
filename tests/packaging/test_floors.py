"""The floors of the dependencies are what the suite was run with; `make check-floors` runs it with them."""

import re
from pathlib import Path

from packaging.version import Version

from tests.packaging.floors import ROOT, constraints, floors

PINNED = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


def test_no_floor_is_older_than_what_the_suite_runs_with() -> None:
    """`pillow>=12` admitted 12.0.0, where a PNG of 786 kB takes 4 GB."""
    pinned = {name.lower().replace("_", "-"): Version(version) for name, version in PINNED.items()}
    lowest = floors(Path(ROOT, "pyproject.toml").read_text())
    assert lowest.keys() <= pinned.keys()
    series = {name: Version(version).release[:2] for name, version in lowest.items()}
    assert series == {name: pinned[name].release[:2] for name in lowest}


def test_the_floors_replace_the_pins() -> None:
    found = constraints("# why\nPillow==13.0.0\npydantic_core==2.50.4\nonnx==1.23.2\n", {"pillow": "13.0"})
    assert found == "# why\nonnx==1.23.2\npillow==13.0\n"

"""Settings that hold for every test, and what stands in for a newcomer's machine."""

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes is a matter of the machine's load, not of the code: pytest's timeout is the bound.
settings.register_profile("quatserve", deadline=None)
settings.load_profile("quatserve")

# A shell that starts this suite in the background makes it ignore Ctrl-C, and children inherit that. Some
# tests press Ctrl-C on what they start: take the usual handler back, which for a child is the default again.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a curl of our own: a machine with Python and make alone passes too."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "curl"
    program.write_text(f"#!{sys.executable}\n{Path(__file__).with_name('curl.py').read_text()}")
    program.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def newcomer(stand_ins: Path) -> dict[str, str]:
    """The environment of whoever types our examples: our `python`; curl is the machine's, or else ours."""
    path = [str(Path(sys.executable).parent), os.environ["PATH"], str(stand_ins)]
    return os.environ | {"PATH": os.pathsep.join(path)}

"""onnxruntime reports to nobody: it keeps an identifier and a database of events on disk when it does."""

import os
import subprocess
import sys
from pathlib import Path

LOAD = "from quatserve.service.engine.session import session_options; session_options(1)"


def test_onnxruntime_prepares_no_reports(tmp_path: Path) -> None:
    own = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    subprocess.run([sys.executable, "-c", LOAD], env=own | {"HOME": str(tmp_path)}, check=True)
    assert list(tmp_path.rglob("*")) == []

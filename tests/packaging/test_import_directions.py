"""Who imports whom: the contracts of pyproject.toml, and what a process really loads."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEB = {"fastapi", "starlette", "uvicorn", "prometheus_client"}
TRAINING = {"torch", "onnx", "quatserve.training", "quatserve.export"}


def test_import_linter_keeps_every_contract() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    contracts = (ROOT / "pyproject.toml").read_text().count("[[tool.importlinter.contracts]]")
    assert f"{contracts} kept, 0 broken" in run.stdout


def loaded_by(*modules: str) -> set[str]:
    """Names of all modules in memory after importing these in a new process."""
    script = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(run.stdout.split())


def modules_of(room: str) -> list[str]:
    """Every module of a room of the service, so that none hides a heavy import."""
    files = [path.relative_to(ROOT) for path in sorted((ROOT / "service" / room).glob("*.py"))]
    return [
        ".".join(("quatserve", *path.parent.parts, path.stem)).removesuffix(".__init__") for path in files
    ]


@pytest.mark.parametrize(
    ("room", "unwanted"),
    [
        ("imaging", WEB | TRAINING | {"onnxruntime"}),
        ("bulk", WEB | TRAINING | {"quatserve.service.web"}),
        ("engine", WEB | TRAINING | {"PIL"}),
        (".", TRAINING),
        ("web", TRAINING),
    ],
)
def test_a_room_loads_only_what_it_may_know(room: str, unwanted: set[str]) -> None:
    names = modules_of(room)
    loaded = loaded_by(*names)
    assert set(names) <= loaded
    assert loaded.isdisjoint(unwanted)

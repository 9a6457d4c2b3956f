"""Who imports whom: training -> nobody, export -> training and service.artifact, service -> neither.

Checked twice, by import-linter (which follows chains of imports) and by reading the import statements
(which needs no tool and sees imports inside functions just as well).
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.import_statements import PACKAGES, imports, modules

ROOT = Path(__file__).parents[2]


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def fault(module: str, target: str) -> str | None:
    """Why `module` may not import `target`, or nothing."""

    def reaches(*packages: str) -> bool:
        return any(inside(target, package) for package in packages)

    if inside(module, "training") and reaches("export", "service"):
        return "training stands alone"
    if inside(module, "export") and reaches("service") and not reaches("service.artifact"):
        return "export knows service.artifact, and nothing else of the service"
    if inside(module, "service") and reaches("training", "export", "torch"):
        return "the service needs neither the trainer, nor the exporter, nor torch"
    if module == "service.artifact" and reaches("service", "onnxruntime", "fastapi", "starlette", "uvicorn"):
        return "the artifact's schema needs neither the service, nor a runtime, nor a web framework"
    return None


def faults(root: Path) -> list[str]:
    return [
        f"{module} imports {target}: {reason}"
        for package in PACKAGES
        for module, path in modules(root, package)
        for target in imports(module, path)
        if (reason := fault(module, target))
    ]


def test_the_packages_keep_their_directions() -> None:
    assert all(list(modules(ROOT, package)) for package in PACKAGES)
    assert faults(ROOT) == []


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("training/loop.py", "import export"),
        ("training/loop.py", "from service.artifact import read"),
        ("export/fold.py", "from service import session"),
        ("export/fold.py", "from service.session import open_session"),
        ("export/fold.py", "import service"),
        ("service/session.py", "from training.network import Network"),
        ("service/session.py", "import torch.nn"),
        ("service/session.py", "def f():\n    from torch import nn"),
        ("service/__main__.py", "from export import verify"),
        ("service/artifact.py", "import onnxruntime as ort"),
        ("service/artifact.py", "from fastapi import FastAPI"),
        ("service/artifact.py", "from .settings import Settings"),
    ],
)
def test_a_wrong_import_is_seen(tmp_path: Path, file: str, statement: str) -> None:
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text(statement)
    assert len(faults(tmp_path)) == 1


def test_the_right_imports_pass(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    (tmp_path / "export/fold.py").write_text(
        "import torch, service.artifact\nfrom training.network import Network\nfrom service import artifact"
    )
    assert faults(tmp_path) == []


def test_import_linter_agrees() -> None:
    run = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "4 kept, 0 broken" in run.stdout

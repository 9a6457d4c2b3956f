"""The picture in docs/architecture.md has the layers that import-linter enforces."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = {
    contract["containers"][0]: contract["layers"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    if contract["type"] == "layers"
}


@pytest.mark.parametrize("package", ["training", "export", "service"])
def test_the_picture_has_the_enforced_layers(package: str) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    picture = text.partition(f"subgraph {package}[")[2].partition("    end\n")[0]
    boxes = re.findall(r'(\w\d)\["([^"]+)"\]', picture)
    enforced = [layer for layer in LAYERS[f"quatserve.{package}"] if not layer.startswith("(")]
    assert [text for _, text in boxes] == enforced
    arrows = re.findall(r"(?<=--> )\w\d", picture)
    assert arrows == [name for name, _ in boxes[1:]]

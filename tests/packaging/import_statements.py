"""Reads the import statements of a package without running it."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("training", "export", "service")


def modules(root: Path, package: str) -> Iterator[tuple[str, Path]]:
    """Every module of a package with its dotted name, `quatserve.PACKAGE...`."""
    for path in sorted((root / package).rglob("*.py")):
        parts = ("quatserve", *path.relative_to(root).with_suffix("").parts)
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(module: str, path: Path) -> Iterator[str]:
    """Every module that `path` names in an import, anywhere in the file, as an absolute dotted name."""
    parents = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            anchor = parents[: len(parents) - node.level + 1] if node.level else []
            source = ".".join([*anchor, *([node.module] if node.module else [])])
            yield source

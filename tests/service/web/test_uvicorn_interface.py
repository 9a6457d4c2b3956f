"""The undocumented parts of uvicorn that we rely on exist, and only one file uses them."""

import ast
import inspect
import textwrap
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import uvicorn
from packaging.requirements import Requirement
from packaging.version import Version
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from quatserve.service.web import protocol
from quatserve.service.web.protocol import BoundedProtocol, BoundedServer
from tests.service.harness import REPOSITORY

FILE = Path(inspect.getfile(protocol))
OURS = {BoundedProtocol: HttpToolsProtocol, BoundedServer: uvicorn.Server}
# What an expression in protocol.py stands for.
OBJECTS = {
    "self.cycle": RequestResponseCycle,
    "self._active": RequestResponseCycle,
    "self.flow": FlowControl,
    "self.server_state": ServerState,
}


def members(kind: type) -> set[str]:
    """Its methods, and what any of its methods assigns to self."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    stored = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    return stored | set(dir(kind)) | set(vars(kind).get("__annotations__", {}))


def attributes_of(expression: str, tree: ast.AST) -> set[str]:
    """Every NAME in `expression.NAME`."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {node.attr for node in nodes if ast.unparse(node.value) == expression}


@pytest.mark.parametrize("kind", OURS)
def test_every_inherited_name_is_there(kind: type) -> None:
    tree, theirs = ast.parse(textwrap.dedent(inspect.getsource(kind))), members(OURS[kind])
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    used = attributes_of("self", tree) - (own | vars(kind).keys() | set(kind.__annotations__))
    assigned = {"departure", "handlers"}  # ours, in a method
    assert used
    assert used - assigned <= theirs
    assert attributes_of("super()", tree) <= theirs


@pytest.mark.parametrize("expression", OBJECTS)
def test_the_parts_of_a_connection_have_the_names_that_we_use(expression: str) -> None:
    used = attributes_of(expression, ast.parse(FILE.read_text()))
    assert used
    assert used <= members(OBJECTS[expression])


def overridden() -> list[tuple[type, str]]:
    """Our public methods override uvicorn's; so does the one private method that calls super()."""
    found = [
        (BoundedProtocol, name)
        for name in vars(BoundedProtocol)
        if inspect.isfunction(getattr(BoundedProtocol, name))
    ]
    public = [(kind, name) for kind, name in found if not name.startswith("_")]
    return [*public, (BoundedProtocol, "_start_asgi_task"), (BoundedServer, "capture_signals")]


@pytest.mark.parametrize(("kind", "name"), overridden())
def test_an_overridden_method_has_the_parameters_of_uvicorns(kind: type, name: str) -> None:
    ours, theirs = (inspect.signature(getattr(owner, name)).parameters for owner in (kind, OURS[kind]))
    assert list(ours) == list(theirs)


def test_no_other_file_uses_them() -> None:
    for path in FILE.parents[1].rglob("*.py"):
        tree = ast.parse(path.read_text())
        modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        if path != FILE:
            assert not [name for name in modules if name.startswith("uvicorn")], path
            assert names.isdisjoint({"server_state", "capture_signals", "http_protocol_class"}), path


def test_the_next_minor_version_of_uvicorn_is_not_accepted() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    required = next(r for r in map(Requirement, project["dependencies"]) if r.name == "uvicorn")
    installed = Version(version("uvicorn"))
    assert installed in required.specifier
    assert f"{installed.major}.{installed.minor + 1}.0" not in required.specifier

"""CONTRIBUTING.md fits on a screen, and the documentation leads to files that exist."""

import re
from pathlib import Path

import pytest

from quatserve.training.recipes import _all
from tests.packaging.import_statements import PACKAGES

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
FOLDERS = ("docs", "models", "runs", "service")
PAGES = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
each_page = pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: str(page.relative_to(ROOT)))


def test_the_guide_is_short() -> None:
    assert len(GUIDE.splitlines()) <= 70


def test_the_guide_names_files_that_exist() -> None:
    named = re.findall(r"`((?:quatserve|training|export|service|tests|docs)/[\w/.]*)`", GUIDE)
    assert len(named) > 15
    assert [name for name in named if not ((ROOT / name).exists() or (ROOT / f"{name}.py").exists())] == []
    assert _all.__name__ in GUIDE


@each_page
def test_links_between_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [link for link in links if not page.parent.joinpath(link).exists()] == []


@each_page
def test_guides_call_the_installed_command(page: Path) -> None:
    """`python -m service` works in a clone only."""
    assert not re.search(r"python -m (service|training|export)\b", page.read_text())


def test_the_folders_of_tests_are_those_of_the_code() -> None:
    tests = ROOT / "tests"
    folders = [path for package in PACKAGES for path in (tests / package).rglob("*/") if path.name[0] != "_"]
    assert len(folders) > 10
    assert [path for path in folders if not (ROOT / path.relative_to(tests)).is_dir()] == []

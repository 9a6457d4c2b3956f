"""The table of modules in service/README.md."""

import re

from tests.service.harness import REPOSITORY

SERVICE = REPOSITORY / "service"


def test_every_module_has_its_place_in_the_table() -> None:
    table = (SERVICE / "README.md").read_text().partition("| module | holds |")[2].partition("\n## ")[0]
    first_cells = " ".join(re.findall(r"^\|(.+?)\|", table, re.MULTILINE))
    named = re.findall(r"`(\w+)`", first_cells)
    assert sorted(named) == sorted(file.stem for file in SERVICE.glob("[!_]*.py"))

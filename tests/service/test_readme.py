"""service/README.md describes the rooms and the settings that there are."""

import re

from tests.service.harness import REPOSITORY
from tests.service.settings_table import settings_table

SERVICE = REPOSITORY / "service"
README = (SERVICE / "README.md").read_text()


def test_every_room_and_module_is_in_the_table_of_rooms() -> None:
    table = README.partition("| room | holds |")[2].partition("\n\n")[0]
    first_cells = " ".join(re.findall(r"^\|(.+?)\|", table, re.MULTILINE))
    there = [path.stem for path in SERVICE.glob("[!_]*.py")]
    there += [path.parent.name for path in SERVICE.glob("*/__init__.py")]
    assert sorted(re.findall(r"`(\w+)`", first_cells)) == sorted(there)


def test_the_table_of_settings_is_that_of_the_code() -> None:
    """`python -m tests.service.settings_table` prints it."""
    assert settings_table() in README

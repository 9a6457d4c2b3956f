"""`models.json`: what it may say, and what is refused in one line that names the place."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from quatserve.service.artifact import Task
from quatserve.service.errors import SettingsError
from quatserve.service.models_file import MAX_BYTES, MODELS_FILE, ModelsFile, read_models_file


def write(models: Path, content: Any) -> None:
    (models / MODELS_FILE).write_text(json.dumps(content))


def test_without_a_file_nothing_is_chosen(tmp_path: Path) -> None:
    assert read_models_file(tmp_path) == ModelsFile(defaults={}, pins={}, required=None)


def test_defaults_pins_and_required_names_are_read(tmp_path: Path) -> None:
    write(tmp_path, {"defaults": {"classification": "a"}, "pins": {"b-2": 3}, "required": ["a", "b-2"]})
    found = read_models_file(tmp_path)
    assert found.defaults == {Task.CLASSIFICATION: "a"}
    assert found.pins == {"b-2": 3}
    assert found.required == ("a", "b-2")


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ({"default": {}}, "default: Extra inputs"),
        ({"defaults": {"detection": "a"}}, "defaults.detection"),
        ({"defaults": {"classification": "../a"}}, "defaults.classification: String should match"),
        ({"pins": {"a": 0}}, "pins.a: Input should be greater than or equal to 1"),
        ({"pins": {"A": 1}}, "pins.A"),
        ({"required": "a"}, "required"),
        ([], "document"),
    ],
)
def test_what_it_may_not_say_is_named(tmp_path: Path, content: Any, place: str) -> None:
    write(tmp_path, content)
    with pytest.raises(SettingsError) as caught:
        read_models_file(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / MODELS_FILE}: {place}")
    assert "\n" not in message


def test_what_is_no_small_regular_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / MODELS_FILE
    os.mkfifo(path)
    with pytest.raises(SettingsError, match="not a regular file"):
        read_models_file(tmp_path)
    path.unlink()
    path.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(SettingsError, match=r"at most 1,048,576 are allowed"):
        read_models_file(tmp_path)
    path.write_bytes(b"{}" + b" " * (MAX_BYTES - 2))
    assert read_models_file(tmp_path) == ModelsFile()

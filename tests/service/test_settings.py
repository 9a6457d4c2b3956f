"""The settings as a whole: what depends on what, and the API keys."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from quatserve.service.errors import SettingsError
from quatserve.service.settings import Settings


def test_settings_ignore_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the commands read it: an application that passes its own settings gets those."""
    monkeypatch.setenv("QUATSERVE_PORT", "9000")
    assert Settings().port == 8000


def test_settings_are_immutable() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().port = 9  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_images": 65}, r"max_images \(65\) cannot exceed queue_images \(64\)"),
        (
            {"max_body_bytes": 9, "upload_memory_bytes": 8},
            r"max_body_bytes \(9\) cannot exceed upload_memory_bytes \(8\)",
        ),
        ({"drain_notice_s": 20}, r"drain_notice_s \(20\) must be less than drain_timeout_s \(20\)"),
    ],
)
def test_inconsistent_settings_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Settings.model_validate(values)


def test_keys_come_from_the_list_and_the_file(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("third\n\n fourth \n")
    settings = Settings.model_validate({"api_keys": "first, second", "api_keys_file": tmp_path / "keys"})
    assert settings.keys() == ("first", "second", "third", "fourth")
    assert "first" not in repr(settings)


def test_the_file_of_keys_must_be_readable_text_with_a_key(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, fault in (
        ("empty", "holds no key"),
        ("binary", "it is not text"),
        ("missing", "No such file or directory"),
    ):
        with pytest.raises(SettingsError, match=f"api_keys_file: .*{name}.*{fault}"):
            Settings(api_keys_file=tmp_path / name).keys()


@pytest.mark.parametrize("key", ["schlüssel", "a\u200bb", "tab\there"])
def test_a_key_that_no_header_can_hold_is_refused(tmp_path: Path, key: str) -> None:
    (tmp_path / "keys").write_text(key, encoding="utf-8")
    for values in ({"api_keys": key}, {"api_keys_file": tmp_path / "keys"}):
        with pytest.raises(SettingsError, match="printable ASCII") as error:
            Settings.model_validate(values).keys()
        assert key not in str(error.value)

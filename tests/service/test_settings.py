"""Settings: one definition, told apart by nothing but where it is read from."""

import subprocess
import sys
from pathlib import Path

import pytest

from quatserve.service.errors import SettingsError
from quatserve.service.settings import Settings, flag_of, parse, table, variable_of
from tests.service.harness import REPOSITORY


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quatserve", "serve", *arguments],
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_defaults() -> None:
    settings = parse([], {})
    assert (settings.host, settings.port, settings.device.value) == ("127.0.0.1", 8000, "cpu")
    assert settings == Settings()


def test_flags_win_over_the_environment_and_that_over_defaults() -> None:
    environment = {"QUATSERVE_PORT": "9000", "QUATSERVE_HOST": "0.0.0.0", "HOME": "/"}
    settings = parse(["--port", "9001"], environment)
    assert (settings.port, settings.host, settings.queue_images) == (9001, "0.0.0.0", 64)


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_a_flag_a_variable_and_a_line_of_the_help(name: str) -> None:
    page = run("--help").stdout if name == "host" else _help()
    assert flag_of(name) in page
    assert variable_of(name) in page.replace("\n", "").replace(" ", "")


def _help() -> str:
    from quatserve.service.settings import CommandParser, add_flags

    parser = CommandParser()
    add_flags(parser)
    return parser.format_help()


def test_the_documented_table_is_the_one_of_the_code() -> None:
    assert table() in (REPOSITORY / "service" / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "environment", "told"),
    [
        (["--port", "70000"], {}, "port is '70000'"),
        (["--port", "x"], {}, "QUATSERVE_PORT"),
        ([], {"QUATSERVE_DEVICE": "tpu"}, "'auto', 'cuda' or 'cpu'"),
        ([], {"QUATSERVE_PROT": "1"}, "QUATSERVE_PROT: no such setting"),
        (["--prot", "1"], {}, "--prot"),
        (["--dead", "3", "--model", "/tmp"], {}, "unrecognized arguments: --dead 3 --model /tmp"),
        (["--max-images", "100"], {}, "cannot exceed queue_images"),
        (["--drain-notice-s", "20"], {}, "drain_notice_s (20) must be less than drain_timeout_s (20)"),
        (["--deadline-s", "inf"], {}, "deadline_s"),
        (["--queue-timeout-s", "0"], {}, "greater than 0"),
        (["--api-keys-file", "/nowhere"], {}, "cannot be read"),
    ],
)
def test_a_bad_setting_is_one_line_that_names_it(
    arguments: list[str], environment: dict[str, str], told: str
) -> None:
    with pytest.raises(SettingsError) as fault:
        parse(arguments, environment)
    assert told in str(fault.value)
    assert "\n" not in str(fault.value)


def test_a_bad_setting_exits_with_2_and_debug_adds_the_traceback() -> None:
    plain, debug = run("--port", "x"), run("--port", "x", "--debug")
    assert (plain.returncode, debug.returncode) == (2, 2)
    assert plain.stderr.count("\n") == 1
    assert "port" in plain.stderr
    assert "Traceback" in debug.stderr


def test_nothing_to_serve_exits_with_1_and_says_where_it_looked(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "missing"):
        ended = run("--models-dir", str(directory))
        assert ended.returncode == 1
        assert ended.stderr.count("\n") == 1
        assert str(directory) in ended.stderr


def test_keys_come_from_the_list_and_the_file_and_never_show(tmp_path: Path) -> None:
    secret = tmp_path / "keys"
    secret.write_text("third\n\n fourth \n")
    settings = parse(["--api-keys", "first, second", "--api-keys-file", str(secret)], {})
    assert settings.keys() == ("first", "second", "third", "fourth")
    assert "first" not in repr(settings)


def test_an_empty_secret_does_not_open_the_service(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("\n")
    with pytest.raises(SettingsError, match="holds no key"):
        parse(["--api-keys-file", str(tmp_path / "keys")], {})


@pytest.mark.parametrize("value", [",", " ", " , "])
def test_a_list_without_a_key_does_not_open_the_service(value: str) -> None:
    with pytest.raises(SettingsError, match="api_keys it holds no key"):
        parse([], {variable_of("api_keys"): value})
    assert parse([], {variable_of("api_keys"): ""}).keys() == ()


@pytest.mark.parametrize("key", ["schlüssel", "a\u200bb", "tab\there"])
def test_a_key_that_no_header_can_hold_is_refused(tmp_path: Path, key: str) -> None:
    (tmp_path / "keys").write_text(key, encoding="utf-8")
    for flag, value in (("--api-keys", key), ("--api-keys-file", str(tmp_path / "keys"))):
        with pytest.raises(SettingsError, match="printable ASCII") as fault:
            parse([flag, value], {})
        assert key not in str(fault.value)


def test_a_secret_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="keys cannot be read \\(it is no text\\)"):
        parse(["--api-keys-file", str(tmp_path / "keys")], {})

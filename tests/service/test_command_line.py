"""Flags and variables of `quatserve serve`, and the one line that a bad one ends in."""

import subprocess
import sys
from pathlib import Path

import pytest

from quatserve.service.command_line import flag_of, variable_of
from quatserve.service.commands import parse
from quatserve.service.errors import SettingsError
from quatserve.service.settings import Settings
from tests.service.harness import REPOSITORY


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quatserve", "serve", *arguments],
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_without_flags_and_variables_the_defaults_apply() -> None:
    assert parse([], {}) == Settings()


def test_flags_override_variables_and_these_the_defaults() -> None:
    environment = {"QUATSERVE_PORT": "9000", "QUATSERVE_HOST": "0.0.0.0", "HOME": "/"}
    settings = parse(["--port", "9001"], environment)
    assert (settings.port, settings.host, settings.queue_images) == (9001, "0.0.0.0", 64)


def test_the_help_lists_every_setting_with_its_flag_and_variable() -> None:
    page = serve("--help").stdout
    assert page.startswith("usage: quatserve serve ")
    words = page.replace("\n", "").replace(" ", "")
    for name, field in Settings.model_fields.items():
        assert flag_of(name) in page
        assert variable_of(name) in words
        assert str(field.description).replace(" ", "") in words


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--port", "70000"], {}, "port is '70000': it should be less than or equal to 65535 (--port, QUAT"),
        ([], {"QUATSERVE_PORT": "x"}, "port is 'x': it should be a valid integer"),
        ([], {"QUATSERVE_DEVICE": "tpu"}, "device is 'tpu': it should be 'auto', 'cuda' or 'cpu'"),
        (
            [],
            {"QUATSERVE_PROT": "1"},
            "QUATSERVE_PROT: there is no such setting; see `quatserve serve --help`",
        ),
        (["--prot", "1"], {}, "unrecognized arguments: --prot 1; see `quatserve serve --help`"),
        (["--dead", "3", "--model", "/tmp"], {}, "unrecognized arguments: --dead 3 --model /tmp"),
        (["--max-images", "100"], {}, "max_images (100) cannot exceed queue_images (64)"),
        (["--deadline-s", "inf"], {}, "deadline_s is 'inf': it should be a finite number"),
        (["--queue-timeout-s", "0"], {}, "greater than 0"),
        (["--api-keys-file", "/nowhere"], {}, "api_keys_file: /nowhere cannot be read"),
        ([], {"QUATSERVE_API_KEYS": " , "}, "api_keys holds no key (--api-keys, QUATSERVE_API_KEYS)"),
        (["--api-keys", ","], {}, "api_keys holds no key"),
    ],
)
def test_a_bad_setting_is_one_line_with_name_value_and_bound(
    arguments: list[str], environment: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError) as error:
        parse(arguments, environment)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_empty_list_of_keys_serves_everybody() -> None:
    assert parse([], {"QUATSERVE_API_KEYS": ""}).keys() == ()


def test_a_bad_setting_exits_with_2_and_debug_adds_the_traceback() -> None:
    plain, debug = serve("--port", "x"), serve("--port", "x", "--debug")
    assert (plain.returncode, debug.returncode) == (2, 2)
    assert plain.stderr.startswith("error: port is 'x'")
    assert plain.stderr.count("\n") == 1
    assert "Traceback" in debug.stderr


def test_nothing_to_serve_exits_with_1_and_names_the_directory(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "missing"):
        ended = serve("--models-dir", str(directory))
        assert ended.returncode == 1
        assert ended.stderr.count("\n") == 1
        assert str(directory) in ended.stderr

"""What one log record looks like in either format."""

import json
import logging
import sys

import pytest

from quatserve.service.telemetry.logs import JsonFormatter, TextFormatter


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "quatserve.test", "levelname": "INFO", "msg": message, **extra})
    made.created = 1_700_000_000.25
    return made


def test_json_has_the_time_in_utc_and_the_extra_fields() -> None:
    line = JsonFormatter().format(record("model ready", model="a", versions=[1, 2]))
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "info",
        "logger": "quatserve.test",
        "message": "model ready",
        "model": "a",
        "versions": [1, 2],
    }


def test_json_is_one_line_with_the_traceback() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        line = JsonFormatter().format(record("failed", exc_info=sys.exc_info()))
    assert "\n" not in line
    assert json.loads(line)["traceback"].endswith("ValueError: first\nsecond\n")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("/classify", "/classify"),
        ("/a\nINFO forged", r"'/a\nINFO forged'"),
        ("/a status=200", "'/a status=200'"),
        ("/a' status='200", "\"/a' status='200\""),
        ("status=200", "'status=200'"),
        (200, "200"),
    ],
)
def test_no_value_of_a_text_line_can_pass_for_another_field(value: object, shown: str) -> None:
    line = TextFormatter().format(record("request", path=value, client=None))
    assert line.endswith(f"INFO    request path={shown}")
    assert "client" not in line  # fields without a value are left out

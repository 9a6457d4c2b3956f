"""Structured logs: one JSON document a line, or plain text for people. Never image content or keys."""

import logging
import sys
import traceback
import warnings
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in STANDARD}


class JsonFormatter(logging.Formatter):
    """Time, level, logger and message, then whatever the caller attached."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info and record.exc_info[1] is not None:
            entry["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
        return orjson.dumps(entry, default=str).decode()


class TextFormatter(logging.Formatter):
    """The same on a line to read."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        facts = " ".join(
            f"{key}={_on_one_line(value)}" for key, value in _extras(record).items() if value is not None
        )
        return f"{super().format(record)} {facts}".rstrip()


def _on_one_line(value: object) -> str:
    """A path may hold a line break, and would make up a line of its own."""
    text = str(value)
    return text if text.isprintable() else repr(text)


def configure(level: str, style: Literal["json", "text"]) -> None:
    """Send every logger of the process, uvicorn's and Python's warnings too, through one handler."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("PIL").setLevel(logging.WARNING)  # it logs chunk contents at debug level
    logging.captureWarnings(True)
    # Pillow's tell what is wrong with a file, in ever new words that Python keeps. The client is told anyway.
    warnings.filterwarnings("ignore", module=r"PIL\.")

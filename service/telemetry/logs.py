"""Structured logs: one JSON document per line, or plain text. Never image content or API keys."""

import logging
import sys
import traceback
import warnings
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from quatserve.service.telemetry.queued_handler import QueuedHandler

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in STANDARD}


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, and the fields in `extra`."""

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
    """The same as a line of text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        facts = " ".join(
            f"{key}={_quoted(value)}" for key, value in _extras(record).items() if value is not None
        )
        return f"{super().format(record)} {facts}".rstrip()


def _quoted(value: object) -> str:
    """Quote whatever could be taken for more than one value: a request path could forge a field or a line."""
    text = str(value)
    plain = text.isprintable() and not any(character in text for character in " =\"'")
    return text if plain else repr(text)


def configure(level: str, style: Literal["json", "text"]) -> None:
    """Send all logs of the process, including uvicorn's and Python's warnings, to one handler."""
    handler = QueuedHandler(sys.stderr.fileno())
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("PIL").setLevel(logging.WARNING)  # it logs chunk contents at debug level
    logging.captureWarnings(True)
    # Pillow warns of damaged files in ever new words, and Python keeps each. The client gets an error anyway.
    warnings.filterwarnings("ignore", module=r"PIL\.")

"""The results of `classify`: a CSV or JSON Lines file that a second run continues, always in whole rows."""

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from quatserve.service.engine.predictions import Predictions
from quatserve.service.errors import SettingsError

ENCODING = {"encoding": "utf-8", "errors": "surrogateescape"}  # file names may be any bytes
FOREIGN = "content that `quatserve classify` did not write"


class Table(ABC):
    """An open table. `done` holds the files that an earlier run classified."""

    def __init__(self, path: Path, model: str, top_k: int) -> None:
        self.path, self.model, self.top_k = path, model, top_k
        path.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes() if path.exists() else b""
        kept = self._whole_rows(content)
        if not kept:  # the rest is truncated below, so it must be the start of our own first row
            beginning = self._beginning()
            self._check(content[: len(beginning)] == beginning[: len(content)], FOREIGN)
        self.done = self._read(kept.decode(**ENCODING))
        self._stream: BinaryIO = path.open("ab", buffering=0)
        self._stream.truncate(len(kept))  # drop the row that an interruption cut off
        if not kept:
            self._write(self._head())

    def add(self, rows: Iterable[tuple[str, Predictions]]) -> None:
        """Append all rows at once; what an interruption cuts off, the next run drops."""
        self._write("".join(self._row(file, found) for file, found in rows).encode(**ENCODING))

    def _write(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:  # an unbuffered write may be partial
            rest = rest[self._stream.write(rest) :]

    def close(self) -> None:
        self._stream.close()

    def _check(self, valid: bool, fault: str) -> None:
        if not valid:
            raise SettingsError(f"out is {str(self.path)!r}: it holds {fault}; choose another file")

    @abstractmethod
    def _whole_rows(self, content: bytes) -> bytes: ...

    @abstractmethod
    def _read(self, text: str) -> set[str]: ...

    @abstractmethod
    def _head(self) -> bytes: ...

    @abstractmethod
    def _beginning(self) -> bytes: ...

    @abstractmethod
    def _row(self, file: str, predictions: Predictions) -> str: ...


class CsvTable(Table):
    """file, model, label, probability, label_2, probability_2, ..."""

    def _columns(self) -> list[str]:
        places = ["", *(f"_{place}" for place in range(2, self.top_k + 1))]
        return ["file", "model", *(name + place for place in places for name in ("label", "probability"))]

    def _whole_rows(self, content: bytes) -> bytes:
        end = content.rfind(b"\n") + 1
        while content.count(b'"', 0, end) % 2:  # this line break is inside a quoted name
            end = content.rfind(b"\n", 0, end - 1) + 1
        return content[:end]

    def _read(self, text: str) -> set[str]:
        head, *rows = self._lines(text) or [self._columns()]
        self._check(head == self._columns(), f"other columns ({', '.join(head)[:120]})")
        self._check({len(row) for row in rows} <= {len(head)}, FOREIGN)
        found: dict[str, str] = {row[0]: row[1] for row in rows}
        self._check(set(found.values()) <= {self.model}, "results of another model")
        return set(found)

    def _lines(self, text: str) -> list[list[str]]:
        try:
            return list(csv.reader(io.StringIO(text, newline="")))
        except csv.Error as error:
            raise SettingsError(
                f"out is {str(self.path)!r}: it is not CSV ({error}); choose another file"
            ) from None

    def _head(self) -> bytes:
        return self._line(self._columns()).encode()

    def _beginning(self) -> bytes:
        return self._head()

    def _row(self, file: str, predictions: Predictions) -> str:
        values = [value for found in predictions for value in (found["label"], found["probability"])]
        return self._line([file, self.model, *values])

    def _line(self, values: Sequence[object]) -> str:
        stream = io.StringIO(newline="")
        csv.writer(stream, lineterminator="\r\n").writerow(values)  # so that both are quoted in a name
        return stream.getvalue().removesuffix("\r\n") + "\n"


class JsonLinesTable(Table):
    """{"file": ..., "model": ..., "predictions": [{"label": ..., "index": ..., "probability": ...}]}"""

    def _whole_rows(self, content: bytes) -> bytes:
        return content[: content.rfind(b"\n") + 1]

    def _read(self, text: str) -> set[str]:
        found: dict[str, str] = {}
        for line in text.split("\n")[:-1]:
            row = self._object(line)
            found[row["file"]] = row["model"]
            count = len(row["predictions"])
            self._check(count == self.top_k, f"{count} classes per image, not {self.top_k}")
        self._check(set(found.values()) <= {self.model}, "results of another model")
        return set(found)

    def _object(self, line: str) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        self._check(isinstance(row, dict) and row.keys() >= {"file", "model", "predictions"}, FOREIGN)
        return dict(row or {})

    def _head(self) -> bytes:
        return b""

    def _beginning(self) -> bytes:
        return b'{"file": '

    def _row(self, file: str, predictions: Predictions) -> str:
        return json.dumps({"file": file, "model": self.model, "predictions": predictions}) + "\n"


FORMATS: dict[str, type[Table]] = {".csv": CsvTable, ".jsonl": JsonLinesTable}


def open_table(path: Path, model: str, top_k: int) -> Table:
    return FORMATS[path.suffix](path, model, top_k)


def check_suffix(path: Path) -> None:
    if path.suffix not in FORMATS:
        raise SettingsError(f"out is {str(path)!r}: the name must end in {' or '.join(FORMATS)}")

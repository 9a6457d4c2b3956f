"""Logs without ever waiting for the reader of the log."""

import logging
import os
import threading
import time

PENDING_BYTES = 4 * 2**20  # of lines that wait for the reader of the log
WRITE_EVERY_S = 0.01
CLOSING_LIMIT_S = 1.0


class QueuedHandler(logging.Handler):
    """Writes lines on a thread of its own: a pipe that nobody reads must not block whoever logs.

    Lines wait in memory up to `max_bytes`; further ones are dropped and counted.
    """

    def __init__(self, descriptor: int, max_bytes: int = PENDING_BYTES) -> None:
        super().__init__()
        self._descriptor, self._max_bytes = descriptor, max_bytes
        self._pending: list[bytes] = []
        self._pending_bytes = 0  # until they are written
        self._closing = False
        self._changed = threading.Condition()
        self.dropped = 0
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n".encode(errors="backslashreplace")
        except Exception:  # noqa: BLE001  # as in the handlers of the standard library
            self.handleError(record)
            return
        with self._changed:
            if self._closing or self._pending_bytes + len(line) > self._max_bytes:
                self.dropped += 1
                return
            self._pending.append(line)
            self._pending_bytes += len(line)
            self._changed.notify()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802  # as in logging
        """Count the record as dropped; the default would write to the pipe on the caller's thread."""
        with self._changed:
            self.dropped += 1

    def close(self) -> None:
        """Write what waits, within a limit; later lines are dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSING_LIMIT_S)
        super().close()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._pending) or self._closing)
                lines, self._pending = self._pending, []
            if not lines:
                return
            text = b"".join(lines)
            written = self._write(text)
            with self._changed:
                self._pending_bytes -= len(text)
                self.dropped += 0 if written else len(lines)
            if not self._closing:
                time.sleep(WRITE_EVERY_S)  # under load one write takes many lines

    def _write(self, text: bytes) -> bool:
        """Whether the text was written. Not by sys.stderr: its lock would be held while the pipe is full."""
        rest = memoryview(text)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:  # for example, the reader is gone
            return False
        return True


def dropped_lines() -> int:
    """Lines that this process has not logged, because nobody read the earlier ones."""
    return sum(handler.dropped for handler in logging.root.handlers if isinstance(handler, QueuedHandler))

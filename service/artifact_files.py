"""Reads files that somebody else may have written: regular files only, and no more bytes than allowed."""

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path, max_bytes: int) -> bytes:
    """The content of a file, or OSError if it is no regular file or has more than `max_bytes`."""
    with open(path, "rb", opener=_open_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if status.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"{status.st_size:,} bytes, at most {max_bytes:,} are allowed")
        return file.read(status.st_size)  # a file that grows meanwhile is not read further


def _open_at_once(path: str, flags: int) -> int:
    """Open without blocking: a FIFO that nobody writes to would block for ever."""
    return os.open(path, flags | os.O_NONBLOCK)

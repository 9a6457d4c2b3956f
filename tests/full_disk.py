"""A disk that is full, for as long as a test needs it."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def full_disk(after_bytes: int) -> Iterator[None]:
    """No file may grow beyond `after_bytes`: a write fails as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

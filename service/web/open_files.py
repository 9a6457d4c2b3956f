"""Raises the limit on open files to what `max_connections` needs: on most systems it is 1024."""

import logging
import resource

SPARE_FILES = 64  # for the listening socket, logs, threads, and models being loaded
log = logging.getLogger(__name__)


def files_needed(max_connections: int) -> int:
    """Refused connections that linger count twice: there may be as many of them as open ones."""
    return 2 * max_connections + SPARE_FILES


def allow_open_files(max_connections: int) -> None:
    """Raise the soft limit as far as needed. Without a free file, a connection is lost without a response."""
    needed = files_needed(max_connections)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        log.warning(
            "too few open files for max_connections; raise ulimit -n or lower --max-connections",
            extra={"allowed": allowed, "needed": needed},
        )

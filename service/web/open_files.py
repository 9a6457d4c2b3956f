"""Room for every connection that the settings allow: most systems give a process 1024 open files."""

import logging
import resource

SPARE_FILES = 64  # listening, logging, threads, and reading the models of a rescan
log = logging.getLogger(__name__)


def files_needed(max_connections: int) -> int:
    """As many may linger after a refusal as may be connected."""
    return 2 * max_connections + SPARE_FILES


def allow_open_files(max_connections: int) -> None:
    """Raise the soft limit as far as needed. Without room for it, a connection is lost with no word why."""
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

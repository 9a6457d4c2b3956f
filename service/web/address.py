"""Checks the host and port before models are loaded, which takes seconds."""

import errno
import socket

from quatserve.service.errors import AddressError


def check_address(host: str, port: int) -> None:
    """Raise AddressError unless a server can listen on `host` and `port` now."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            trial.bind(address)
    except OSError as error:
        raise AddressError(_sentence(host, port, error)) from error


def _sentence(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken: stop what uses it, or choose another (--port)"
    return f"cannot listen on {host}, port {port} ({error.strerror}): choose another with --host and --port"

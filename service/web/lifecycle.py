"""Whether the service takes work, drains or is stuck, and whether a client still waits for its answer."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request

from quatserve.service.errors import ClientGoneError, DrainingError

DEPARTURE = "quatserve.departure"  # key of a connection's Departure in the extensions of the ASGI scope


class Lifecycle:
    """Counts accepted requests, so that the drain knows when all of them are answered."""

    def __init__(self) -> None:
        self.draining = False
        self.stuck = False
        self.accepted = 0
        self._idle = asyncio.Event()

    def check(self) -> None:
        """Raise DrainingError unless new work is taken."""
        if self.draining or self.stuck:
            raise DrainingError("the service is shutting down; send the request to another instance")

    @contextmanager
    def accept(self) -> Iterator[None]:
        """Count one request, or refuse it. An accepted request is finished even if a drain begins."""
        self.check()
        self.accepted += 1
        try:
            yield
        finally:
            self.accepted -= 1
            if self.accepted == 0:
                self._idle.set()

    async def finished(self) -> None:
        """Wait until no accepted request is left."""
        while self.accepted:
            self._idle.clear()
            await self._idle.wait()


class Departure:
    """Tells a waiting request at once that its client has disconnected. One per connection."""

    __slots__ = ("_future", "gone")

    def __init__(self) -> None:
        self.gone = False
        self._future: asyncio.Future[None] | None = None

    def watch(self, future: "asyncio.Future[None]") -> None:
        """Make `future`, which a request awaits, fail when the client disconnects."""
        self._future = future
        if self.gone:
            self.happened()

    def happened(self) -> None:
        self.gone = True
        future, self._future = self._future, None  # a reference kept here would be a cycle with the request
        if future is not None and not future.done():
            future.set_exception(ClientGoneError("the client disconnected"))


def departure_of(request: Request) -> Departure:
    """The Departure of the request's connection; under another server, one that never happens."""
    found = request.scope.get("extensions", {}).get(DEPARTURE)
    return found if isinstance(found, Departure) else Departure()

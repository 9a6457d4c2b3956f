"""Whether the service takes work: up, draining after SIGTERM, or stuck in a run that does not end."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from quatserve.service.errors import ClientGoneError, DrainingError

DEPARTURE = "quatserve.departure"  # where a request finds its Departure, in the extensions of its scope


class Lifecycle:
    """Counts accepted requests, so that draining knows when they are all answered."""

    def __init__(self) -> None:
        self.draining = False
        self.stuck = False
        self.accepted = 0
        self._idle = asyncio.Event()

    def check(self) -> None:
        """Raise DrainingError unless work is taken."""
        if self.draining or self.stuck:
            raise DrainingError("the service is shutting down; another instance will take this")

    @contextmanager
    def accept(self) -> Iterator[None]:
        """Take one request, or refuse it; taken, it is finished even if draining begins."""
        self.check()
        self.accepted += 1
        try:
            yield
        finally:
            self.accepted -= 1
            if self.accepted == 0:
                self._idle.set()

    async def finished(self) -> None:
        """Wait until every accepted request is answered."""
        while self.accepted:
            self._idle.clear()
            await self._idle.wait()


class Departure:
    """Tells a waiting request at once that its client has left. One per connection."""

    __slots__ = ("_future", "gone")

    def __init__(self) -> None:
        self.gone = False
        self._future: asyncio.Future[None] | None = None

    def watch(self, future: "asyncio.Future[None]") -> None:
        """Fail this future, the one its request waits for, when the client leaves."""
        self._future = future
        if self.gone:
            self.happened()

    def happened(self) -> None:
        self.gone = True
        future, self._future = self._future, None  # kept, it would lead to the request and back to here
        if future is not None and not future.done():
            future.set_exception(ClientGoneError("the client left"))

"""A model while it is served: kept loaded by those who use it, retired when the last of them is done."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from quatserve.service.engine.batcher import Batcher
from quatserve.service.engine.load import Model


@dataclass(eq=False)
class Serving:
    """A model with its queue, and the requests that hold on to it."""

    model: Model
    batcher: Batcher
    leases: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @contextmanager
    def lease(self) -> Iterator["Serving"]:
        """While leased, the model stays loaded even when a newer one has taken its place."""
        self.leases += 1
        self.idle.clear()
        try:
            yield self
        finally:
            self.leases -= 1
            if self.leases == 0:
                self.idle.set()

    async def retire(self) -> None:
        """Let the requests that hold the model finish, then end its thread."""
        while self.leases:
            await self.idle.wait()
        await self.batcher.close()

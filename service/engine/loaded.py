"""A loaded model with its batcher, and the leases that keep it loaded until the last request is done."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from quatserve.service.engine.batcher import Batcher
from quatserve.service.engine.load import Model


@dataclass(eq=False)
class LoadedModel:
    """A model, its batcher, and the number of requests that use it."""

    model: Model
    batcher: Batcher
    leases: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @contextmanager
    def lease(self) -> Iterator["LoadedModel"]:
        """While leased, the model stays loaded even after a newer version has replaced it."""
        self.leases += 1
        self.idle.clear()
        try:
            yield self
        finally:
            self.leases -= 1
            if self.leases == 0:
                self.idle.set()

    async def retire(self) -> None:
        """Wait for the leases to end, then end the batcher's thread."""
        while self.leases:
            await self.idle.wait()
        await self.batcher.close()

"""Responses that wait in memory for their client to read them: bounded in time, and together in bytes."""

import asyncio


class UnreadResponses:
    """The connections whose client is slower than its response, longest waiting first."""

    def __init__(self, timeout_s: float, max_bytes: int) -> None:
        self._timeout_s, self._max_bytes = timeout_s, max_bytes
        self._timers: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def add(self, transport: asyncio.Transport) -> None:
        """Abort the connection unless `remove` is called for it in time."""
        if transport not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[transport] = loop.call_later(self._timeout_s, transport.abort)

    def remove(self, transport: asyncio.Transport) -> None:
        if timer := self._timers.pop(transport, None):
            timer.cancel()

    def free_memory(self) -> None:
        """Abort the longest waiting connections until the others fit into memory."""
        while sum(transport.get_write_buffer_size() for transport in self._timers) > self._max_bytes:
            oldest = next(iter(self._timers))
            self.remove(oldest)
            oldest.abort()

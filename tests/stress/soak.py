"""Very many requests of every kind: all answered, and no memory that is not given back."""

import asyncio
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

from tests.service.artifacts import write_both
from tests.service.harness import encoded, noise, plain
from tests.stress.connection import Answer, post, post_form, pour
from tests.stress.record import Record, measured, under_attack

CONNECTIONS = 32
RED = plain((200, 60, 40))


def mixture() -> list[tuple[int, bytes]]:
    """Fifty requests and the status each deserves: mostly small images, and something of everything else."""
    small = [(200, post("/classify", encoded(noise(32, 32, seed)))) for seed in range(30)]
    forms = [
        (200, post_form("/classify?top_k=2", encoded(noise(32, 32, seed)), "a.png", "image/png"))
        for seed in range(10)
    ]
    return [
        *small,
        *forms,
        (200, post("/classify", encoded(noise(90, 70), "JPEG"), "image/jpeg")),  # decoded on a thread
        (200, post("/segment", RED)),
        (200, post("/segment?output=overlay", encoded(noise(80, 24)))),
        (200, b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n"),
        (200, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"),
        (400, post("/classify", RED[:60])),
        (404, post("/classify?model=nobody", RED)),
        (404, b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n"),
        (415, post("/classify", RED, "text/plain")),
        (422, post("/classify?top_k=0", RED)),
    ]


def attack(root: Path, *, requests: int, first: int) -> Record:
    """Memory after the first requests against memory after all of them."""
    write_both(root)
    record, wrong = Record(f"{requests:,} requests"), 0

    def told(deserved: int, answer: Answer) -> None:
        nonlocal wrong
        record.answered(answer.status, answer.seconds)
        wrong += answer.status != deserved

    kinds: Iterator[tuple[int, bytes]] = cycle(mixture())
    with under_attack(record, root, access_log=False) as running:
        asyncio.run(pour(running.port, islice(kinds, first), CONNECTIONS, told))
        with measured(record, running):
            asyncio.run(pour(running.port, islice(kinds, requests - first), CONNECTIONS, told))
    record.check("each is answered as it deserves", f"{record.statuses()}; {wrong} wrong", wrong == 0)
    record.check_memory()
    return record

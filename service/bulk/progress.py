"""Counts processed files, and shows them as a progress bar on a terminal."""

import sys
import time
from collections.abc import Iterable
from typing import Any, Self

from tqdm import tqdm

from quatserve.service.bulk.pipeline import SkippedFile


class Progress:
    """`done` files, `skipped` ones with their reasons on standard error, and a summary at the end."""

    def __init__(self, total: int) -> None:
        self._bar: tqdm[Any] = tqdm(total=total, unit=" images", disable=None, dynamic_ncols=True)
        self._started = time.perf_counter()
        self.done = self.skipped = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def count(self, done: int, skipped: Iterable[SkippedFile]) -> None:
        for item in skipped:
            self.skipped += 1
            self._bar.write(f"{item.file.path}: {item.reason}", file=sys.stderr)
            self._bar.update()
        self.done += done
        self._bar.update(done)

    def summary(self, before: int) -> str:
        rate = self.done / (time.perf_counter() - self._started)
        parts = [f"{self.done} done" + (f" at {rate:,.0f} images/s" if self.done else "")]
        parts += [f"{before} done before"] if before else []
        parts += [f"{self.skipped} skipped"] if self.skipped else []
        return ", ".join(parts)

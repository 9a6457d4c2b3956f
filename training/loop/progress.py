"""Shows the progress of an epoch: a live bar on a terminal, one line per epoch elsewhere."""

import sys
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

SCORE_NAMES = {"classification": "error", "segmentation": "1 - IoU"}
AUGMENTED = "on augmented training images"  # so that it is not mistaken for a test error


class EpochProgress:
    def __init__(self, epoch: int, epochs: int, task: str, *, shown: bool):
        self.title = f"epoch {epoch + 1}/{epochs}"
        self.score_name = SCORE_NAMES[task]
        self.shown = shown
        live = shown and sys.stderr.isatty()
        self.bar = tqdm(desc=self.title, unit="img", disable=not live, leave=False)

    def update(self, images: int, of: int, loss: float, score: float) -> None:
        self.bar.total = of
        self.bar.set_postfix_str(f"loss {loss:.3f}, {self.score_name} {score:.2%} (augmented)", refresh=False)
        self.bar.update(images - self.bar.n)

    def finish(self, row: dict[str, Any]) -> None:
        """Print the epoch as one permanent line."""
        if not self.shown:
            return
        line = f"{self.title}: loss {row['loss']:.4f}, {self.score_name} {row['score']:.2%} {AUGMENTED}"
        if "validation_score" in row:
            line += f", held out {row['validation_score']:.2%}"
        tqdm.write(f"{line}, {row['images_per_second']:.0f} images/s", file=sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()

"""What the loop knows of data: batches, shuffled and augmented from one seed.

Every rank of a distributed run makes the same whole batch and keeps its share, so that N processes see
the batches that one process would.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from torch import Tensor

from quatserve.training.errors import UserError
from quatserve.training.recipes.schema import Recipe


class Batch(NamedTuple):
    inputs: Tensor  # (B, 3, H, W), normalised
    truth: Tensor  # labels (B,) or targets (B, H, W)
    answers: Tensor | None = None  # (B, classes) a teacher's, as logits


class Epoch(NamedTuple):
    steps: int
    batches: Iterator[Batch]


class Data(Protocol):
    """What the loop needs to know of a data set. A score is (wrong, total); their ratio is minimised."""

    def epoch(self, number: int, seed: int) -> Epoch: ...
    def validation(self) -> Iterator[Batch] | None: ...
    def loss(self, logits: Tensor, batch: Batch) -> Tensor: ...
    def score(self, logits: Tensor, batch: Batch) -> Tensor: ...


class Examples(NamedTuple):
    """Images and what is true of them; in memory, or mapped from a file."""

    images: Tensor  # (N, 3, H, W) uint8
    truth: Tensor  # labels (N,) int64, or targets (N, H, W) uint8


def full_batches(order: Tensor, recipe: Recipe) -> list[Tensor]:
    """The few images left over get their turn in another epoch."""
    return list(order[: len(order) // recipe.batch_size * recipe.batch_size].split(recipe.batch_size))


def check_enough(count: int, recipe: Recipe) -> None:
    if count < recipe.batch_size:
        raise UserError(
            f"{count} training images are fewer than one batch of {recipe.batch_size}: is the data set whole "
            f"and holdout ({recipe.holdout or recipe.held_share}) small enough? --batch-size makes it smaller"
        )

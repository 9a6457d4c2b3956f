"""The data of a run: in memory, shuffled and augmented batch by batch from one seed.

Every rank of a distributed run makes the same whole batch and keeps its share, so that N processes see
the batches that one process would.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from quatserve.training.data import augment, cifar, kitti
from quatserve.training.errors import UserError
from quatserve.training.loop import distillation, losses
from quatserve.training.recipes.schema import Classification, Recipe, Segmentation

VALIDATION_BATCH = 250
ROAD_VALIDATION_BATCH = 4


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


def read_data(recipe: Recipe, directory: Path) -> Data:
    return RoadData(recipe, directory) if recipe.dataset == "kitti-road" else CifarData(recipe, directory)


class CifarData:
    def __init__(self, recipe: Recipe, directory: Path):
        assert isinstance(recipe.task, Classification)
        self.recipe, self.how = recipe, recipe.task
        everything = cifar.read_cifar(cifar.LAYOUTS[recipe.dataset], directory, "train")
        cut = len(everything) - recipe.holdout
        self.train, self.held = everything[:cut], everything[cut:]
        _enough(len(self.train), recipe)

    def epoch(self, number: int, seed: int) -> Epoch:
        generator = augment.epoch_generator(seed, number)
        parts = _full_batches(torch.randperm(len(self.train), generator=generator), self.recipe)
        return Epoch(len(parts), self._batches(parts, number, seed, generator))

    def _batches(self, parts: list[Tensor], epoch: int, seed: int, generator: Generator) -> Iterator[Batch]:
        for index in parts:
            images = self._augment(self.train.images[index], index, epoch, seed, generator)
            yield Batch(augment.normalise(images), self.train.labels[index])

    def _augment(self, images: Tensor, index: Tensor, epoch: int, seed: int, generator: Generator) -> Tensor:
        how = self.how
        if how.flip == "alternate":
            images = augment.flip_alternately(images, index, epoch, seed)
        elif how.flip == "random":
            images = augment.flip_randomly(images, generator)
        images = augment.shift(images, how.shift_pixels, generator)
        return augment.erase_squares(images, how.erase, generator) if how.erase else images

    def validation(self) -> Iterator[Batch] | None:
        return labelled_batches(self.held) if len(self.held) else None

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        loss = F.cross_entropy(logits, batch.truth)
        if batch.answers is None:
            return loss
        return loss.lerp(distillation.divergences(logits, batch.answers).mean(), self.recipe.distil)

    def score(self, logits: Tensor, batch: Batch) -> Tensor:
        return losses.wrong_and_total(logits, batch.truth)


class RoadData:
    def __init__(self, recipe: Recipe, directory: Path):
        assert isinstance(recipe.task, Segmentation)
        self.recipe, self.how = recipe, recipe.task
        train, held = kitti.split_frames(kitti.list_frames(directory), recipe.holdout)
        _enough(len(train), recipe)
        self.train = kitti.read_road(train, recipe.height, recipe.width)
        self.held = kitti.read_road(held, recipe.height, recipe.width) if held else None

    def epoch(self, number: int, seed: int) -> Epoch:
        generator = augment.epoch_generator(seed, number)
        parts = _full_batches(torch.randperm(len(self.train), generator=generator), self.recipe)
        return Epoch(len(parts), self._batches(parts, number, generator))

    def _batches(self, parts: list[Tensor], epoch: int, generator: Generator) -> Iterator[Batch]:
        how = self.how
        for index in parts:
            images = self.train.images[index].float() / 255
            if how.colour:
                images = augment.jitter_colour(images, how.colour, generator)
            if how.shadow:
                images = augment.cast_shadow(images, how.shadow, generator)
            images, targets = augment.warp(
                images,
                self.train.targets[index],
                size=how.size(epoch / self.recipe.epochs),
                scale=how.scale,
                shift=how.shift,
                flip=how.flip,
                generator=generator,
            )
            yield Batch(augment.normalise(images * 255), targets)

    def validation(self) -> Iterator[Batch] | None:
        if self.held is None:
            return None
        return (
            Batch(augment.normalise(images), targets)
            for images, targets in zip(
                self.held.images.split(ROAD_VALIDATION_BATCH),
                self.held.targets.split(ROAD_VALIDATION_BATCH),
                strict=True,
            )
        )

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return losses.road_loss(logits, batch.truth, self.how.entropy_weight)

    def score(self, logits: Tensor, batch: Batch) -> Tensor:
        return losses.disagreement_and_union(logits, batch.truth)


def labelled_batches(data: cifar.LabelledImages) -> Iterator[Batch]:
    """The images as they are, in order."""
    for start in range(0, len(data), VALIDATION_BATCH):
        part = data[start : start + VALIDATION_BATCH]
        yield Batch(augment.normalise(part.images), part.labels)


def _full_batches(order: Tensor, recipe: Recipe) -> list[Tensor]:
    """The few images left over get their turn in another epoch."""
    return list(order[: len(order) // recipe.batch_size * recipe.batch_size].split(recipe.batch_size))


def _enough(count: int, recipe: Recipe) -> None:
    if count < recipe.batch_size:
        raise UserError(
            f"{count} training images are fewer than one batch of {recipe.batch_size}: "
            f"is the data set whole, and holdout ({recipe.holdout}) small enough?"
        )

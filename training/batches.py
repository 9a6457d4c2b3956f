"""The data of a run: in memory, shuffled and augmented batch by batch from one seed.

Every rank of a distributed run makes the same whole batch and keeps its share, so that N processes see
exactly the batches that one process would.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Generator, Tensor

from . import augment, cifar, kitti, losses
from .errors import UserError
from .recipes import Recipe

Batch = tuple[Tensor, Tensor]  # network input (B, 3, H, W), and labels (B,) or targets (B, H, W)
VALIDATION_BATCH = 250
ROAD_VALIDATION_BATCH = 4


class Data(Protocol):
    """What the loop needs to know of a data set. A score is (wrong, total); their ratio is minimised."""

    def steps(self) -> int: ...
    def epoch(self, number: int, seed: int) -> Iterator[Batch]: ...
    def validation(self) -> Iterator[Batch] | None: ...
    def loss(self, logits: Tensor, truth: Tensor) -> Tensor: ...
    def score(self, logits: Tensor, truth: Tensor) -> Tensor: ...


def read_data(recipe: Recipe, directory: Path) -> Data:
    return RoadData(recipe, directory) if recipe.dataset == "kitti-road" else CifarData(recipe, directory)


class CifarData:
    def __init__(self, recipe: Recipe, directory: Path):
        self.recipe = recipe
        everything = cifar.read_cifar(cifar.LAYOUTS[recipe.dataset], directory, "train")
        cut = len(everything) - recipe.holdout
        self.train, self.held = everything[:cut], everything[cut:]
        _enough(len(self.train), recipe)

    def steps(self) -> int:
        return self.recipe.repeats * len(self.train) // self.recipe.batch_size

    def epoch(self, number: int, seed: int) -> Iterator[Batch]:
        generator = augment.epoch_generator(seed, number)
        for index in _shuffled(len(self.train), self.recipe, generator):
            images = self._augment(self.train.images[index], index, number, seed, generator)
            yield augment.normalise(images), self.train.labels[index]

    def _augment(self, images: Tensor, index: Tensor, epoch: int, seed: int, generator: Generator) -> Tensor:
        how = self.recipe.augmentation
        if how.flip == "alternate":
            images = augment.flip_alternately(images, index, epoch, seed)
        elif how.flip == "random":
            images = augment.flip_randomly(images, generator)
        return augment.shifted_crop(images, how.side(epoch / self.recipe.epochs), how.shift_pixels, generator)

    def validation(self) -> Iterator[Batch] | None:
        return labelled_batches(self.held) if len(self.held) else None

    def loss(self, logits: Tensor, truth: Tensor) -> Tensor:
        return losses.classification_loss(logits, truth, self.recipe.label_smoothing)

    def score(self, logits: Tensor, truth: Tensor) -> Tensor:
        return losses.wrong_and_total(logits, truth)


class RoadData:
    def __init__(self, recipe: Recipe, directory: Path):
        self.recipe = recipe
        train, held = kitti.split_frames(kitti.list_frames(directory), recipe.holdout)
        _enough(len(train), recipe)
        self.train = kitti.read_road(train, recipe.height, recipe.width)
        self.held = kitti.read_road(held, recipe.height, recipe.width) if held else None

    def steps(self) -> int:
        return self.recipe.repeats * len(self.train) // self.recipe.batch_size

    def epoch(self, number: int, seed: int) -> Iterator[Batch]:
        how = self.recipe.augmentation
        generator = augment.epoch_generator(seed, number)
        for index in _shuffled(len(self.train), self.recipe, generator):
            images = self.train.images[index].float() / 255
            if how.colour:
                images = augment.jitter_colour(images, how.colour, generator)
            images, targets = augment.warp(
                images,
                self.train.targets[index],
                size=how.size(number / self.recipe.epochs),
                scale=how.scale,
                shift=how.shift,
                flip=how.flip != "none",
                generator=generator,
            )
            yield augment.normalise(images * 255), targets

    def validation(self) -> Iterator[Batch] | None:
        if self.held is None:
            return None
        return (
            (augment.normalise(images), targets)
            for images, targets in zip(
                self.held.images.split(ROAD_VALIDATION_BATCH),
                self.held.targets.split(ROAD_VALIDATION_BATCH),
                strict=True,
            )
        )

    def loss(self, logits: Tensor, truth: Tensor) -> Tensor:
        return losses.road_loss(logits, truth)

    def score(self, logits: Tensor, truth: Tensor) -> Tensor:
        return losses.disagreement_and_union(logits, truth)


def labelled_batches(data: cifar.LabelledImages) -> Iterator[Batch]:
    """The images as they are, in order."""
    for start in range(0, len(data), VALIDATION_BATCH):
        part = data[start : start + VALIDATION_BATCH]
        yield augment.normalise(part.images), part.labels


def _shuffled(count: int, recipe: Recipe, generator: Generator) -> Iterator[Tensor]:
    """Full batches of indices; the few images left over get their turn in another epoch."""
    order = torch.cat([torch.randperm(count, generator=generator) for _ in range(recipe.repeats)])
    yield from order[: len(order) // recipe.batch_size * recipe.batch_size].split(recipe.batch_size)


def _enough(count: int, recipe: Recipe) -> None:
    if count < recipe.batch_size:
        raise UserError(
            f"{count} training images are fewer than one batch of {recipe.batch_size}: "
            f"is the data set whole, and holdout ({recipe.holdout}) small enough?"
        )

"""Segmentation: images with a class for every pixel."""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from quatserve.training.data import augment
from quatserve.training.loop import losses
from quatserve.training.loop.batches import Batch, Epoch, Examples, check_enough, full_batches
from quatserve.training.recipes.schema import Recipe, Segmentation

VALIDATION_BATCH = 4


class PixelData:
    def __init__(self, recipe: Recipe, train: Examples, held: Examples | None):
        assert isinstance(recipe.task, Segmentation)
        self.recipe, self.how = recipe, recipe.task
        self.train, self.held = train, held
        check_enough(len(train.images), recipe)

    def epoch(self, number: int, seed: int) -> Epoch:
        generator = augment.epoch_generator(seed, number)
        parts = full_batches(torch.randperm(len(self.train.images), generator=generator), self.recipe)
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
                self.train.truth[index],
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
                self.held.images.split(VALIDATION_BATCH), self.held.truth.split(VALIDATION_BATCH), strict=True
            )
        )

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return losses.segmentation_loss(logits, batch.truth, self.how.entropy_weight)

    def score(self, logits: Tensor, batch: Batch) -> Tensor:
        return losses.disagreement_and_union(logits, batch.truth)

"""Classification: images with labels."""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from quatserve.training.data import augment
from quatserve.training.loop import distillation, losses
from quatserve.training.loop.batches import Batch, Epoch, Examples, check_enough, full_batches
from quatserve.training.recipes.schema import Classification, Recipe

VALIDATION_PIXELS = 250 * 32 * 32  # of the images in one batch


class LabelledData:
    def __init__(self, recipe: Recipe, train: Examples, held: Examples):
        assert isinstance(recipe.task, Classification)
        self.recipe, self.how = recipe, recipe.task
        self.train, self.held = train, held
        check_enough(len(train.truth), recipe)
        self.weights = class_weights(train.truth, recipe.network.classes)

    def epoch(self, number: int, seed: int) -> Epoch:
        generator = augment.epoch_generator(seed, number)
        parts = full_batches(self._order(generator), self.recipe)
        return Epoch(len(parts), self._batches(parts, number, seed, generator))

    def _order(self, generator: Generator) -> Tensor:
        labels = self.train.truth
        if self.how.balance == "draw":  # as many as there are, every class as often as any other
            return torch.multinomial(self.weights[labels], len(labels), replacement=True, generator=generator)
        return torch.randperm(len(labels), generator=generator)

    def _batches(self, parts: list[Tensor], epoch: int, seed: int, generator: Generator) -> Iterator[Batch]:
        for index in parts:
            images = self._augment(self.train.images[index], index, epoch, seed, generator)
            yield Batch(augment.normalise(images), self.train.truth[index])

    def _augment(self, images: Tensor, index: Tensor, epoch: int, seed: int, generator: Generator) -> Tensor:
        how, size = self.how, (self.recipe.height, self.recipe.width)
        if how.crop < 1 or images.shape[2:] != size:
            images = augment.crop_and_resize(images, size, how.crop, generator)
        if how.flip == "alternate":
            images = augment.flip_alternately(images, index, epoch, seed)
        elif how.flip == "random":
            images = augment.flip_randomly(images, generator)
        if how.shift_pixels:
            images = augment.shift(images, how.shift_pixels, generator)
        if how.colour:
            images = 255 * augment.jitter_colour(images.float() / 255, how.colour, generator)
        return augment.erase_squares(images, how.erase, generator) if how.erase else images

    def validation(self) -> Iterator[Batch] | None:
        return labelled_batches(self.held) if len(self.held.truth) else None

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        weights = self.weights.to(logits) if self.how.balance == "weights" else None
        loss = F.cross_entropy(logits, batch.truth, weights)
        if batch.answers is None:
            return loss
        return loss.lerp(distillation.divergences(logits, batch.answers).mean(), self.recipe.distil)

    def score(self, logits: Tensor, batch: Batch) -> Tensor:
        return losses.wrong_and_total(logits, batch.truth)


def labelled_batches(data: Examples) -> Iterator[Batch]:
    """The images as they are, in order."""
    size = max(1, VALIDATION_PIXELS // (data.images.shape[2] * data.images.shape[3]))
    for images, labels in zip(*(part.split(size) for part in data), strict=True):
        yield Batch(augment.normalise(images), labels)


def class_weights(labels: Tensor, classes: int) -> Tensor:
    """(classes,): the mean number of images of a class over its own; 1 where all classes have as many."""
    counts = torch.bincount(labels, minlength=classes)
    return len(labels) / (classes * counts.clamp_min(1).float())

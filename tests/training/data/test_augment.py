"""Augmentation: image and ground truth stay together, and every draw is fair and repeatable."""

import numpy as np
import pytest
import torch
from torch import Generator

from quatserve.training.data.augment import (
    cast_shadow,
    epoch_generator,
    erase_squares,
    flip_alternately,
    flip_randomly,
    jitter_colour,
    normalise,
    shift,
    warp,
)
from quatserve.training.data.kitti import IGNORED


def generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def numbered(batch: int, side: int) -> torch.Tensor:
    """uint8 images of which every pixel is different within its channel, up to wrapping."""
    return torch.arange(batch * 3 * side * side).reshape(batch, 3, side, side).to(torch.uint8)


def test_normalise_maps_bytes_to_one_interval() -> None:
    images = torch.tensor([0, 255, 51], dtype=torch.uint8).reshape(1, 3, 1, 1)
    assert normalise(images).flatten().tolist() == pytest.approx([-1, 1, -0.6])


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1])
def test_alternate_flips_show_both_views_in_two_epochs(seed: int) -> None:
    images, index = numbered(16, 4), torch.arange(16)
    even, odd = (flip_alternately(images, index, epoch, seed) for epoch in (4, 5))
    assert torch.equal(odd, even.flip(3))
    assert torch.equal(even, flip_alternately(images, index, 0, seed))


def flips(count: int, seed: int, epoch: int = 0) -> np.ndarray:
    marks = torch.zeros(count, 1, 1, 2)
    marks[..., 0] = 1
    return flip_alternately(marks, torch.arange(count), epoch, seed)[:, 0, 0, 1].bool().numpy()


@pytest.mark.parametrize("seed", [0, 1, 7, 2**31 - 1])
def test_alternate_flips_are_balanced_in_every_part_of_the_data(seed: int) -> None:
    """Half of all, of each stretch of the files, and of each class, whose images lie in no order."""
    flipped = flips(50_000, seed)
    assert abs(flipped.mean() - 0.5) < 0.001
    assert all(abs(part.mean() - 0.5) < 0.01 for part in np.split(flipped, 50))
    classes = np.random.default_rng(0).permutation(np.arange(50_000) % 10)
    assert all(abs(flipped[classes == c].mean() - 0.5) < 0.03 for c in range(10))


def test_random_flips_are_fair_and_leave_pixels_alone() -> None:
    images = torch.zeros(4_000, 1, 1, 2)
    images[..., 0] = 1
    flipped = flip_randomly(images, generator())
    assert set(map(tuple, flipped[:, 0, 0].tolist())) == {(1.0, 0.0), (0.0, 1.0)}
    assert abs(flipped[:, 0, 0, 1].mean() - 0.5) < 0.03


@pytest.mark.parametrize("pixels", [4, 2, 0])
def test_a_shifted_image_is_a_window_of_its_reflection(pixels: int) -> None:
    side = 32
    images = torch.randint(256, (64, 3, side, side), dtype=torch.uint8, generator=generator(1))
    shifted = shift(images, pixels, generator())
    assert shifted.shape == images.shape
    assert shifted.dtype == torch.uint8
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (pixels, pixels), (pixels, pixels)), mode="reflect")
    found = set()
    for before, after in zip(padded, shifted.numpy(), strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(before, (side, side), axis=(1, 2))
        rows, columns = np.nonzero((windows == after[:, None, None]).all((0, 3, 4)))
        assert len(rows) == 1
        found.add((int(rows[0]), int(columns[0])))
    assert {offset for pair in found for offset in pair} <= set(range(2 * pixels + 1))
    assert len(found) > 20 or pixels < 4  # of 81 places: images move on their own, on each axis


@pytest.mark.parametrize(("side", "part"), [(32, 0.25), (24, 0.5), (28, 0.35)])
def test_an_erased_square_is_one_grey_square_an_image_anywhere_in_it(side: int, part: float) -> None:
    images = torch.full((2_000, 3, side, side), 255, dtype=torch.uint8)
    erased = erase_squares(images, part, generator())
    assert erased.dtype == torch.uint8
    grey = erased != 255
    assert set(erased[grey].tolist()) == {128}
    assert torch.equal(grey[:, 0], grey[:, 1])
    assert torch.equal(grey[:, 0], grey[:, 2])
    rows, columns = grey[:, 0].any(2), grey[:, 0].any(1)
    assert torch.equal(grey[:, 0], rows[:, :, None] & columns[:, None, :])  # a rectangle, or rectangles,
    for lines in (rows, columns):
        assert (lines.int().diff(dim=1).abs().sum(1) <= 2).all()  # of one piece,
        assert lines.sum(1).max() == pytest.approx(part * side, abs=1)  # as long as asked for,
        assert lines.sum(1).min() >= part * side / 2 - 1  # or cut by the border, by half at most
    where = grey[:, 0].float().mean(0)
    assert (where.amax() - where.mean()) < 0.5 * where.mean()  # no favourite place
    assert torch.equal(images, torch.full_like(images, 255))


def frame_and_target() -> tuple[torch.Tensor, torch.Tensor]:
    """A frame that is its own ground truth: bright where the target is road."""
    torch.manual_seed(0)
    road = torch.nn.functional.interpolate(torch.rand(8, 1, 3, 5), (24, 60), mode="nearest") > 0.5
    return road.float().expand(-1, 3, -1, -1), road[:, 0].to(torch.uint8)


@pytest.mark.parametrize("flip", [False, True])
def test_a_warp_moves_frame_and_truth_together(flip: bool) -> None:
    images, targets = frame_and_target()
    warped, moved = warp(images, targets, scale=0.25, shift=0.2, flip=flip, generator=generator(2))
    known = moved != IGNORED
    away_from_edges = known & ((warped[:, 0] < 0.01) | (warped[:, 0] > 0.99))
    assert away_from_edges.float().mean() > 0.4
    assert torch.equal(warped[:, 0][away_from_edges] > 0.5, moved[away_from_edges] == 1)
    assert not torch.equal(moved, targets)


def test_a_warp_by_nothing_changes_nothing() -> None:
    images, targets = frame_and_target()
    targets[:, :2] = IGNORED
    warped, moved = warp(images, targets, scale=0, shift=0, flip=False, generator=generator())
    torch.testing.assert_close(warped, images, rtol=0, atol=1e-4)
    assert torch.equal(moved, targets)


def test_a_smaller_warp_is_the_whole_frame_made_smaller() -> None:
    images, targets = frame_and_target()
    warped, moved = warp(images, targets, scale=0, shift=0, flip=False, generator=generator(), size=0.75)
    assert warped.shape[2:] == moved.shape[1:] == (18, 45)
    assert not (moved == IGNORED).any()
    assert torch.equal(warped[:, 0].round(), moved.float())
    torch.testing.assert_close(moved.float().mean((1, 2)), targets.float().mean((1, 2)), rtol=0, atol=0.02)


def test_a_flip_alone_mirrors_about_half_of_the_frames() -> None:
    images, targets = (part.repeat(25, *[1] * (part.ndim - 1)) for part in frame_and_target())
    warped, moved = warp(images, targets, scale=0, shift=0, flip=True, generator=generator())
    mirrored = (moved == targets.flip(2)).flatten(1).all(1)
    kept = (moved == targets).flatten(1).all(1)
    assert (mirrored ^ kept).all()
    assert 70 < int(mirrored.sum()) < 130
    torch.testing.assert_close(warped[mirrored], images[mirrored].flip(3), rtol=0, atol=1e-4)


def test_a_shift_moves_by_at_most_its_part_and_ignores_what_comes_in() -> None:
    images, targets = torch.zeros(64, 3, 20, 40), torch.ones(64, 20, 40, dtype=torch.uint8)
    _, moved = warp(images, targets, scale=0, shift=0.1, flip=False, generator=generator())
    ignored = moved == IGNORED
    assert set(moved.unique().tolist()) == {1, IGNORED}
    rows, columns = ignored.all(2).sum(1), ignored.all(1).sum(1)
    assert rows.max() == 2  # a tenth of 20
    assert columns.max() == 4  # a tenth of 40


def test_a_shadow_darkens_a_part_of_about_half_of_the_frames() -> None:
    images = torch.full((400, 3, 16, 52), 0.8)
    shaded = cast_shadow(images, 0.7, generator())
    lost = 1 - shaded / images
    assert lost.min() >= -1e-6
    assert 0.6 < lost.max() <= 0.7 + 1e-6
    assert torch.equal(shaded[:, 0], shaded[:, 2])  # light is lost, not colour
    touched = lost.flatten(1).amax(1) > 0
    assert 150 < int(touched.sum()) < 250
    part = (lost[touched] > 0.5 * lost[touched].amax((1, 2, 3), keepdim=True)).float().mean((1, 2, 3))
    assert 0.05 < part.mean() < 0.6  # a band, neither a speck nor the whole frame


def test_colour_keeps_its_range_and_its_strength() -> None:
    images = torch.rand(200, 3, 6, 8, generator=generator(1))
    assert torch.allclose(jitter_colour(images, 0, generator()), images.clamp_min(1e-4), atol=1e-6)
    jittered = jitter_colour(images, 0.4, generator())
    assert jittered.min() >= 0
    assert jittered.max() <= 1
    change = jittered.mean((1, 2, 3)) / images.mean((1, 2, 3))
    assert change.min() > 0.4
    assert change.max() < 1.8
    assert change.std() > 0.1
    assert jittered.isfinite().all()


def test_an_epoch_is_a_function_of_its_seed() -> None:
    draws = {
        (seed, epoch): torch.rand(4, generator=epoch_generator(seed, epoch)).tolist()
        for seed in range(3)
        for epoch in range(50)
    }
    assert draws[1, 7] == torch.rand(4, generator=epoch_generator(1, 7)).tolist()
    assert len(set(map(tuple, draws.values()))) == len(draws)

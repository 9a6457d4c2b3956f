"""Augmentation of whole batches at once, from a seeded generator.

Every random number comes from one CPU generator, so that an epoch is a function of its seed alone, whatever
the device and however the batch was reached.
"""

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from quatserve.training.data.kitti import IGNORED

PIXEL_SCALE = 127.5  # uint8 -> [-1, 1]


def normalise(images: Tensor) -> Tensor:
    """(B, 3, H, W) in [0, 255] -> float32 in [-1, 1], channels_last."""
    return images.to(torch.float32, memory_format=torch.channels_last) / PIXEL_SCALE - 1


def flip_alternately(images: Tensor, index: Tensor, epoch: int, seed: int) -> Tensor:
    """Flip half of the images left to right; from epoch to epoch each image alternates.

    Two epochs then show every image in both views, where independent draws repeat one of them half the time.
    """
    coin = (index * 0x9E3779B1 + seed * 0x85EBCA77) >> 13  # a fixed pseudo-random bit an image
    flipped = ((coin + epoch) & 1).bool()
    return torch.where(flipped.reshape(-1, 1, 1, 1), images.flip(3), images)


def flip_randomly(images: Tensor, generator: Generator) -> Tensor:
    """Flip each image left to right with probability one half."""
    flipped = torch.randint(2, (len(images), 1, 1, 1), generator=generator).bool()
    return torch.where(flipped, images.flip(3), images)


def shift(images: Tensor, pixels: int, generator: Generator) -> Tensor:
    """Each image moved by up to `pixels` along both axes; its reflection fills what it leaves."""
    batch, _, height, width = images.shape
    padded = F.pad(images.float(), (pixels,) * 4, mode="reflect").to(images.dtype)

    def window(size: int) -> Tensor:
        return torch.randint(2 * pixels + 1, (batch, 1), generator=generator) + torch.arange(size)

    rows, columns = window(height), window(width)
    moved = padded[torch.arange(batch)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2)


def crop_and_resize(images: Tensor, size: tuple[int, int], least: float, generator: Generator) -> Tensor:
    """A random part of each image, `least` of its area or more and up to 4:3 out of shape, at `size`.

    With `least` 1 it is the whole image. What comes out is float, in the range of what came in.
    """
    batch = len(images)
    area = least + (1 - least) * torch.rand((batch, 1), generator=generator)
    shape = torch.exp(_uniform((batch, 1), math.log(4 / 3) / 2 if least < 1 else 0.0, generator))
    sides = (area.sqrt() * torch.cat([shape, 1 / shape], 1)).clamp_max(1)  # width and height, of the image's
    matrix = torch.zeros(batch, 2, 3)
    matrix[:, 0, 0], matrix[:, 1, 1] = sides[:, 0], sides[:, 1]
    matrix[:, :, 2] = (1 - sides) * _uniform((batch, 2), 1.0, generator)
    grid = F.affine_grid(matrix, [batch, 3, *size], align_corners=False)
    return F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)


def erase_squares(images: Tensor, part: float, generator: Generator) -> Tensor:
    """Put mid grey over a square of `part` of each image's side, its centre anywhere within the image."""
    batch, _, height, width = images.shape

    def inside(size: int) -> Tensor:
        centre = torch.rand((batch, 1), generator=generator) * size
        return (torch.arange(size) + 0.5 - centre).abs() < part * size / 2

    square = inside(height)[:, None, :, None] & inside(width)[:, None, None, :]
    return images.masked_fill(square, round(PIXEL_SCALE))


def warp(
    images: Tensor,
    targets: Tensor,
    *,
    scale: float,
    shift: float,
    flip: bool,
    generator: Generator,
    size: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """One random scaling and shift for each frame and its ground truth; what comes from outside is ignored.

    Sizes change by exp(+-scale), each axis by a little more or less, and the frame moves by up to `shift` of
    its size. images float (B, 3, H, W), targets uint8 (B, H, W); what comes out has `size` of their sides.
    """
    batch = len(images)
    zoom = torch.exp(_uniform((batch, 1), scale, generator) + _uniform((batch, 2), scale / 3, generator))
    if flip:
        zoom[:, 0] *= torch.randint(2, (batch,), generator=generator) * 2 - 1
    matrix = torch.zeros(batch, 2, 3)
    matrix[:, 0, 0], matrix[:, 1, 1] = zoom[:, 0], zoom[:, 1]
    matrix[:, :, 2] = _uniform((batch, 2), 2 * shift, generator)
    height, width = (round(size * side) for side in images.shape[2:])
    grid = F.affine_grid(matrix, [batch, 3, height, width], align_corners=False)
    warped = F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
    known = (targets != IGNORED).float()
    planes = F.grid_sample(
        torch.stack([known, targets.float()], 1), grid, mode="nearest", align_corners=False
    )
    return warped, torch.where(planes[:, 0] > 0.5, planes[:, 1], float(IGNORED)).to(torch.uint8)


def jitter_colour(images: Tensor, strength: float, generator: Generator) -> Tensor:
    """Random exposure, contrast, gamma and white balance a frame; images float in [0, 1]."""
    batch = len(images)
    gamma = torch.exp(_uniform((batch, 1, 1, 1), strength, generator))
    balance = torch.exp(_uniform((batch, 3, 1, 1), strength / 2, generator))
    contrast = torch.exp(_uniform((batch, 1, 1, 1), strength / 2, generator))
    exposure = torch.exp(_uniform((batch, 1, 1, 1), strength, generator))
    images = images.clamp(1e-4, 1) ** gamma * balance * exposure
    mean = images.mean((1, 2, 3), keepdim=True)
    return ((images - mean) * contrast + mean).clamp_(0, 1)


def cast_shadow(images: Tensor, darkest: float, generator: Generator) -> Tensor:
    """A ragged band of shade across every other frame, which takes up to `darkest` of the light."""
    batch, _, height, width = images.shape

    def draw(bound: float, *shape: int) -> Tensor:
        return _uniform((batch, *(shape or (1, 1))), bound, generator)

    y, x = torch.linspace(-1, 1, height)[:, None], torch.linspace(-1, 1, width)[None]
    angle, middle, half_width = draw(torch.pi), draw(1), 0.3 + draw(0.25)
    ragged = F.interpolate(draw(0.2, 1, 8, 24), (height, width), mode="bicubic")[:, 0]
    outside = (x * angle.cos() + y * angle.sin() - middle).abs() - half_width + ragged
    sharpness = torch.exp(3 + draw(1))  # from a blur to a line
    shade = torch.sigmoid(-sharpness * outside) * (darkest / 2 + draw(darkest / 2))
    cast = torch.randint(2, (batch, 1, 1), generator=generator)
    return images * (1 - cast * shade)[:, None]


def _uniform(shape: tuple[int, ...], bound: float, generator: Generator) -> Tensor:
    return (2 * torch.rand(shape, generator=generator) - 1) * bound


def epoch_generator(seed: int, epoch: int) -> Generator:
    """The only source of randomness of an epoch."""
    return Generator().manual_seed((seed + 1) * 1_000_003 + epoch)

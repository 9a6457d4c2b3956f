"""KITTI road in its official layout, `data_road/training/{image_2,gt_image_2}`, whole and in memory.

Ground truth is a picture: a pixel is valid where red >= 128, road where it is valid and blue >= 128. Files
named `*_lane_*` belong to another task. Neighbouring frames are near-duplicates, so a validation split is a
contiguous run of each category (um, umm, uu), never a random draw.
"""

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from quatserve.training.errors import UserError

FOLDER = Path("data_road/training")
CATEGORIES = ("um", "umm", "uu")
IGNORED = 255  # in a target: neither road nor background
HOLDOUT = 16  # last frames of each category: what public splits hold out
HOLDOUT_NAME = f"last-{HOLDOUT}-of-each-category"
REGISTER = (
    "KITTI asks for registration: get the base kit of the road benchmark, data_road.zip, from "
    "https://www.cvlibs.net/datasets/kitti/eval_road.php, unpack it in DIR so that DIR/data_road/training is "
    "there, and use --data DIR"
)
# What Pillow raises on broken files.
UNREADABLE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    NotImplementedError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


@dataclass(frozen=True)
class Frame:
    category: str
    number: str
    image: Path
    truth: Path

    @property
    def name(self) -> str:
        return f"{self.category}_{self.number}"


@dataclass(frozen=True)
class RoadImages:
    frames: tuple[Frame, ...]
    images: Tensor  # (N, 3, H, W) uint8, at the network's size
    targets: Tensor  # (N, H, W) uint8: 1 road, 0 background, IGNORED

    def __len__(self) -> int:
        return len(self.frames)


def list_frames(data: Path) -> tuple[Frame, ...]:
    """Every frame with its ground truth, in order of category and number."""
    truths = sorted((data / FOLDER / "gt_image_2").glob("*_road_*.png"))
    if not truths:
        raise UserError(f"{data / FOLDER / 'gt_image_2'} has no *_road_*.png: {REGISTER}")
    return tuple(_frame(data, truth) for truth in truths)


def split_frames(
    frames: tuple[Frame, ...], holdout: int = HOLDOUT
) -> tuple[tuple[Frame, ...], tuple[Frame, ...]]:
    """Training frames, and the last `holdout` of each category."""
    train: list[Frame] = []
    held: list[Frame] = []
    for category in CATEGORIES:
        run = [frame for frame in frames if frame.category == category]
        cut = max(0, len(run) - holdout)
        train += run[:cut]
        held += run[cut:]
    return tuple(train), tuple(held)


def read_road(frames: tuple[Frame, ...], height: int, width: int) -> RoadImages:
    """Frames at the network's size: photographs by antialiased bilinear, ground truth by nearest."""
    images = np.stack([np.asarray(resized(open_rgb(f.image), height, width)) for f in frames])
    targets = np.stack([target_of(resized(open_rgb(f.truth), height, width, nearest=True)) for f in frames])
    return RoadImages(
        frames, torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(targets)
    )


def open_rgb(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except UNREADABLE as error:
        raise UserError(f"{path} cannot be read as an image ({error}): get it again") from error


def target_of(truth: Image.Image) -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
    """Ground-truth picture -> 1 road, 0 background, IGNORED."""
    pixels = np.asarray(truth)
    valid, road = pixels[..., 0] >= 128, pixels[..., 2] >= 128
    return np.where(valid, road.astype(np.uint8), np.uint8(IGNORED))


def _frame(data: Path, truth: Path) -> Frame:
    category, _, number = truth.stem.partition("_road_")
    image = data / FOLDER / "image_2" / f"{category}_{number}.png"
    if not image.is_file():
        raise UserError(f"{truth} has no frame: {image} is missing; get it again, or remove the ground truth")
    return Frame(category, number, image, truth)


def resized(image: Image.Image, height: int, width: int, *, nearest: bool = False) -> Image.Image:
    if image.size == (width, height):
        return image
    return image.resize((width, height), Image.Resampling.NEAREST if nearest else Image.Resampling.BILINEAR)

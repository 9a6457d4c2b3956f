"""A user's images with masks: DIR/images/NAME.* and DIR/masks/NAME.png, which has the image's size.

One class: mask pixels are 0 and 255, or 0 and 1. Several: DIR/classes.txt names them, one a line, and a pixel
is 0 for background, the number of its class, or 255 where it does not count.
"""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from quatserve.training.data.kitti import IGNORED, UNREADABLE
from quatserve.training.data.listing import (
    HELD_OUT,
    TRAINING,
    Entry,
    Part,
    array_name,
    check_unchanged,
    held_out,
    ingest,
    mapped,
)
from quatserve.training.data.store import BadImageError, Photographs, Pixels
from quatserve.training.errors import UserError

IMAGES, MASKS, CLASSES = "images", "masks", "classes.txt"
FOREGROUND = ("foreground",)
MAX_CLASSES = 100


@dataclass(frozen=True, kw_only=True)
class MasksLayout:
    height: int
    width: int
    holdout: int = 0
    held_share: float = 0.0


@dataclass(frozen=True)
class MaskedImages:
    names: tuple[str, ...]  # of the image files, below the data's directory
    images: Tensor  # (N, 3, H, W) uint8
    targets: Tensor  # (N, H, W) uint8: 0 background, the number of a class, or IGNORED

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Pairs:
    """Reads an image and its mask: straight to the size, the mask by nearest neighbours.

    An image that cannot be read, or has no mask, is skipped. A mask that contradicts its image or the classes
    ends the command: all others may be wrong in the same way.
    """

    height: int
    width: int
    classes: int

    def __call__(self, files: Sequence[Path]) -> tuple[str, Sequence[Pixels]]:
        if not files[1].is_file():
            raise BadImageError(f"has no mask {MASKS}/{files[1].name}")
        data, mask = (path.read_bytes() for path in files)
        pixels, size = Photographs(self.height, self.width, square=False).pixels(data)
        target = read_target(mask, self.classes, files[1].name)
        if target.size != size:
            raise UserError(
                f"{MASKS}/{files[1].name} is {target.width} x {target.height} where its image is "
                f"{size[0]} x {size[1]}"
            )
        small = np.asarray(target.resize((self.width, self.height), Image.Resampling.NEAREST))
        return hashlib.sha256(data + mask).hexdigest(), [pixels, small]


def read_target(data: bytes, classes: int, name: str) -> Image.Image:
    """The classes of a mask's pixels, at its own size; a mask of 0 and 255 becomes one of 0 and 1."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode not in ("L", "P", "1"):
                raise UserError(f"{MASKS}/{name} has the mode {image.mode}: a mask has one 8-bit channel")
            pixels = np.asarray(image.convert("L") if image.mode == "1" else image)
    except UNREADABLE as error:
        raise BadImageError(f"{MASKS}/{name} cannot be read ({error})") from error
    found = set(np.unique(pixels).tolist())
    if classes == 1 and found <= {0, 255}:
        return Image.fromarray((pixels == 255).astype(np.uint8))
    if strange := found - set(range(classes + 1)) - ({IGNORED} if classes > 1 else set()):
        known = "0 and 255, or 0 and 1" if classes == 1 else f"0 to {classes} and {IGNORED}"
        raise UserError(f"{MASKS}/{name} has the value {max(strange)} where {known} are known: see {CLASSES}")
    return Image.fromarray(pixels)


def class_names(data: Path) -> tuple[str, ...]:
    """The foreground classes, in order of their numbers from 1."""
    for folder in (IMAGES, MASKS):
        if not (data / folder).is_dir():
            raise UserError(f"{data / folder} is no directory: DIR/{IMAGES}/NAME.* and DIR/{MASKS}/NAME.png")
    if not (data / CLASSES).is_file():
        return FOREGROUND
    lines = (data / CLASSES).read_text(encoding="utf-8").splitlines()
    names = tuple(line.strip() for line in lines if line.strip())
    if not 1 <= len(names) <= MAX_CLASSES or len(set(names)) < len(names):
        raise UserError(f"{data / CLASSES} has {len(names)} names: give 1 to {MAX_CLASSES} different ones")
    return names


def list_pairs(data: Path, layout: MasksLayout) -> tuple[Entry, ...]:
    """Every image in order of its name, with the part that it belongs to. A mask has an image."""
    names = image_names(data)
    last = names[-layout.holdout :] if layout.holdout else ()
    held = set(last) or held_out({"": names}, layout.held_share)
    return tuple(Entry(HELD_OUT if name in held else TRAINING, "", name) for name in names)


def image_names(data: Path) -> list[str]:
    images: dict[str, Path] = {}
    for path in _files(data / IMAGES):
        if path.stem in images:
            raise UserError(
                f"{images[path.stem]} and {path.name} would have the same mask: rename one of them"
            )
        images[path.stem] = path
    for mask in _files(data / MASKS):
        if mask.stem not in images:
            raise UserError(f"{mask} has no image {IMAGES}/{mask.stem}.*: remove it, or put the image there")
    names = sorted(path.relative_to(data).as_posix() for path in images.values())
    if not names:
        raise UserError(f"{data / IMAGES} has no images: put some there")
    return names


def read_pairs(
    data: Path,
    layout: MasksLayout,
    cache: Path,
    *,
    recorded: Sequence[Entry] = (),
    progress: bool = False,
) -> tuple[tuple[Entry, ...], MaskedImages, MaskedImages]:
    """The list of all images, those to train on, and those held out."""
    entries = tuple(Entry(e.part, e.label, e.name) for e in recorded) or list_pairs(data, layout)
    pairs = Pairs(layout.height, layout.width, len(class_names(data)))
    sides = (layout.height, layout.width)
    part = Part(pairs, {IMAGES: (*sides, 3), MASKS: sides})
    place, entries = ingest(
        entries,
        {TRAINING: part, HELD_OUT: part},
        cache,
        lambda entry: [data / entry.name, data / MASKS / f"{Path(entry.name).stem}.png"],
        progress=progress,
    )
    check_unchanged(recorded, entries, data)
    return entries, _part(place, TRAINING, entries), _part(place, HELD_OUT, entries)


def _part(place: Path, part: str, entries: Sequence[Entry]) -> MaskedImages:
    images, masks = (mapped(place / array_name(part, array)) for array in (IMAGES, MASKS))
    names = tuple(entry.name for entry in entries if entry.part == part and not entry.fault)
    return MaskedImages(names, images.permute(0, 3, 1, 2), masks)


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]

"""Images with masks, small enough for a test: squares of a colour for each class, on noise."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from tests.training.photographs import noise

COLOURS = ((250, 20, 20), (20, 250, 20), (20, 20, 250))


def write_masked(data: Path, count: int, classes: Sequence[str] = (), *, foreground: int = 255) -> Path:
    """Without class names: one class, its pixels `foreground`; else 1, 2, ... and a corner that is 255."""
    for folder in ("images", "masks"):
        (data / folder).mkdir(parents=True)
    for i in range(count):
        pixels, mask = noise(24, 32, seed=i) // 3, np.zeros((24, 32), np.uint8)
        for number in range(max(1, len(classes))):
            top, left = (i + 3 * number) % 14, 2 + 10 * number
            where = slice(top, top + 9), slice(left, left + 8)
            pixels[where] = COLOURS[number]
            mask[where] = number + 1 if classes else foreground
        if classes:
            mask[-2:, -2:] = 255
        Image.fromarray(pixels).save(data / "images" / f"{i:03}.jpg", quality=95)
        Image.fromarray(mask).save(data / "masks" / f"{i:03}.png")
    if classes:
        (data / "classes.txt").write_text("".join(f"{name}\n" for name in classes))
    return data

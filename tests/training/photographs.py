"""Folders of photographs, small enough for a test."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def noise(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def write_photographs(
    data: Path, counts: dict[str, int], *, size: tuple[int, int] = (30, 24), seed: int = 0
) -> Path:
    """As many JPEGs for each class, in a shade of its own, of different sizes."""
    for shade, (name, count) in enumerate(counts.items()):
        (data / name).mkdir(parents=True)
        for i in range(count):
            pixels = noise(size[0] + i, size[1], seed=seed + 1000 * shade + i) // 4 + 60 * shade
            Image.fromarray(pixels).save(data / name / f"{name}-{i:03}.jpg")
    return data

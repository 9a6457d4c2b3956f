"""Synthetic images, free of any licence, for proofs and probes."""

import numpy as np
from PIL import Image

from quatserve.training.loop.prediction import Images

SKY, VERGE, ASPHALT, PAINT = (150, 185, 225), (84, 112, 58), (104, 103, 106), (225, 225, 220)


def flat(value: int, height: int, width: int) -> Images:
    return np.full((1, height, width, 3), value, np.uint8)


def noise(count: int, height: int, width: int, seed: int) -> Images:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def smooth(count: int, height: int, width: int, seed: int) -> Images:
    """Soft random colours: 5 x 5 pixels of noise, enlarged."""
    coarse = noise(count, 5, 5, seed)
    size = (width, height)
    return np.stack([np.asarray(Image.fromarray(c).resize(size, Image.Resampling.BICUBIC)) for c in coarse])


def road(height: int, width: int, bend: float, seed: int) -> Images:
    """A grey road, straight or bent, between verges below a sky, with a dashed line and sensor noise."""
    y, x = np.mgrid[0:height, 0:width] / np.array([height, width]).reshape(2, 1, 1)
    depth = np.clip((y - 0.42) / 0.58, 0, 1)  # 0 at the horizon, 1 at the bottom
    away = x - 0.5 - bend * (1 - depth) ** 2
    scene = np.where((y < 0.42)[..., None], SKY, VERGE).astype(np.float64)
    scene[(np.abs(away) < 0.03 + 0.45 * depth) & (depth > 0)] = ASPHALT
    dashes = (np.abs(away) < 0.012 * depth) & (np.sin(14 / (depth + 0.12)) > 0)
    scene[dashes & (depth > 0)] = PAINT
    grain = np.random.default_rng(seed).normal(0, 8, scene.shape)
    return np.clip(scene + grain, 0, 255).astype(np.uint8)[None]


def synthetic(count: int, height: int, width: int) -> Images:
    """`count` images: black, white, soft colours, noise, two roads, then soft colours and noise in turn."""
    pairs = -(-max(0, count - 6) // 2) + 1
    soft, rough = smooth(pairs, height, width, 3), noise(pairs, height, width, 4)
    mixed = np.stack([soft, rough], 1).reshape(-1, height, width, 3)  # soft, rough, soft, ...
    roads = [road(height, width, 0.0, 1), road(height, width, 0.35, 2)]
    flats = [flat(0, height, width), flat(255, height, width)]
    return np.concatenate([*flats, mixed[:2], *roads, mixed[2:]])[:count]

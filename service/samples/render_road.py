"""Renders the street of `road.jpg`: python -m quatserve.service.samples.render_road

A pinhole camera like that of the KITTI car looks down a slightly curved street: asphalt with markings and
patches, kerbs, verges, hedges, trees with their shadows, houses, and sky. The generator is seeded, so the
picture is the same everywhere. KITTI's own frames may not be redistributed.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

Field = NDArray[np.float64]
HEIGHT, WIDTH = 375, 1242
FOCAL, CENTRE_X, HORIZON, CAMERA_M = 721.0, 610.0, 173.0, 1.65
HALF_ROAD_M, KERB_M, PAVEMENT_M = 3.6, 0.18, 1.8


def noise(shape: tuple[int, int], grain: float, generator: np.random.Generator) -> Field:
    """Smooth noise of unit deviation with features of about `grain` pixels."""
    small = generator.standard_normal((int(shape[0] / grain) + 2, int(shape[1] / grain) + 2))
    picture = Image.fromarray(small.astype(np.float32)).resize(shape[::-1], Image.Resampling.BICUBIC)
    field = np.asarray(picture, np.float64)
    scaled: Field = field / field.std()
    return scaled


def textured(colour: tuple[int, int, int], *layers: Field) -> Field:
    """A colour whose brightness follows the layers: (H, W, 3)."""
    brightness: Field = 1 + np.sum(layers, axis=0)
    surface: Field = np.asarray(colour, np.float64) * brightness[..., None]
    return surface


def paint(picture: Field, where: NDArray[np.bool_], surface: Field) -> None:
    picture[where] = surface[where]


def render(seed: int = 4) -> Image.Image:
    generator = np.random.default_rng(seed)
    rows, columns = np.mgrid[:HEIGHT, :WIDTH].astype(np.float64)
    coarse, fine = noise((HEIGHT, WIDTH), 60, generator), noise((HEIGHT, WIDTH), 2, generator)
    medium = noise((HEIGHT, WIDTH), 12, generator)
    picture = sky(rows, columns, coarse)
    scenery(picture, rows, columns, generator, medium, fine)
    ground(picture, rows, columns, coarse, medium, fine)
    tree(picture, rows, columns, 1120, 20, 150, generator)
    tree(picture, rows, columns, 150, 60, 95, generator)
    blurred = Image.fromarray(picture.clip(0, 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(0.7))
    sensor = np.asarray(blurred, np.float64) + generator.normal(0, 2.5, (HEIGHT, WIDTH, 1))
    return Image.fromarray(sensor.clip(0, 255).astype(np.uint8))


def sky(rows: Field, columns: Field, coarse: Field) -> Field:
    light = 1 - 0.25 * rows / HORIZON + 0.03 * coarse + 0.05 * np.cos(columns / WIDTH * 3)
    return np.asarray((196, 214, 236), np.float64) * (0.85 + 0.3 * light)[..., None]


def scenery(
    picture: Field, rows: Field, columns: Field, generator: np.random.Generator, medium: Field, fine: Field
) -> None:
    """Wooded hills behind, houses to the left, a hedge to the right."""
    hills = HORIZON - 24 - 14 * noise((1, WIDTH), 130, generator)
    paint(picture, rows > hills, textured((62, 78, 56), 0.18 * medium, 0.15 * fine))
    for left, right, top, colour in ((-10, 190, 40, (168, 150, 130)), (215, 380, 92, (150, 120, 105))):
        house = (columns > left) & (columns < right) & (rows > top + abs(columns - (left + right) / 2) * 0.28)
        paint(picture, house & (rows < 260), textured(colour, 0.03 * medium, 0.03 * fine))
        windows = house & ((columns - left) % 44 > 26) & ((rows - top) % 48 > 24) & (rows > top + 40)
        paint(picture, windows & (rows < 230), textured((62, 70, 82), 0.1 * medium))
    hedge = (columns > 790) & (rows > HORIZON - (columns - 790) * 0.14 + 3 * fine)
    paint(picture, hedge, textured((52, 74, 40), 0.25 * medium, 0.25 * fine))


def on_the_ground(rows: Field, columns: Field) -> tuple[Field, Field]:
    """Where a pixel's ray meets the ground: metres from the middle of the road, and ahead."""
    z: Field = FOCAL * CAMERA_M / np.maximum(rows - HORIZON, 1e-3)
    x = (columns - CENTRE_X) * z / FOCAL
    offset: Field = x + 0.9 - 0.0035 * np.minimum(z, 120) ** 2  # the road bends to the right
    return offset, z


def ground(picture: Field, rows: Field, columns: Field, coarse: Field, medium: Field, fine: Field) -> None:
    below = rows > HORIZON + 2
    offset, z = on_the_ground(rows, columns)
    across, seen = np.abs(offset), below & (z < 110)
    grain = 0.05 * fine * np.clip(14 / np.maximum(z, 1), 0.2, 1)
    paint(picture, below, textured((92, 112, 58), 0.12 * medium, 0.16 * fine))
    paint(
        picture,
        seen & (across < HALF_ROAD_M + KERB_M + PAVEMENT_M),
        textured((158, 152, 143), 0.04 * medium, grain),
    )
    paint(picture, seen & (across < HALF_ROAD_M + KERB_M), textured((178, 176, 170), grain))
    paint(
        picture, seen & (across < HALF_ROAD_M), textured((104, 104, 106), 0.05 * coarse, 0.03 * medium, grain)
    )
    dash = seen & (np.abs(offset) < 0.07) & (z % 9 < 4)
    edge = seen & (np.abs(across - HALF_ROAD_M + 0.3) < 0.06)
    paint(picture, dash | edge, textured((206, 206, 200), grain))
    shade = seen & (np.abs(z - 15 + 1.2 * medium) < 2.2) & (offset > -1.2 + 0.5 * medium)
    picture[shade] *= 0.62


def tree(
    picture: Field,
    rows: Field,
    columns: Field,
    x: float,
    top: float,
    radius: float,
    generator: np.random.Generator,
) -> None:
    leaves = noise((HEIGHT, WIDTH), 9, generator)
    trunk = (np.abs(columns - x) < radius * 0.07) & (rows > top + radius) & (rows < 235)
    paint(picture, trunk, textured((70, 58, 46), 0.1 * leaves))
    away = np.hypot((columns - x) / 1.1, rows - top - radius * 0.6)
    crown = away < radius * (0.85 + 0.08 * leaves)
    paint(
        picture, crown, textured((66, 92, 44), 0.25 * leaves, 0.15 * noise((HEIGHT, WIDTH), 2.5, generator))
    )


if __name__ == "__main__":
    render().save(Path(__file__).with_name("road.jpg"), quality=92)

"""Draws the road that a network finds in the sample picture, which is ours to distribute."""

from pathlib import Path

import numpy as np
from PIL import Image

from quatserve.training.data.kitti import open_rgb, resized
from quatserve.training.evaluation.road_metrics import road_mask
from quatserve.training.loop.prediction import Predictor

SAMPLE = Path(__file__).parents[2] / "service/samples/road.jpg"
OVERLAY = "overlay.jpg"
GREEN = (60, 220, 110)


def draw_overlay(predict: Predictor, height: int, width: int, path: Path) -> None:
    """Save the sample picture at its own size, with the mask of `predict` in green."""
    image = open_rgb(SAMPLE)
    values = predict(np.asarray(resized(image, height, width))[None])[0]
    mask = road_mask(np.asarray(resized(Image.fromarray(values), image.height, image.width)), 0.5)
    tinted = Image.blend(image, Image.new("RGB", image.size, GREEN), 0.5)
    Image.composite(tinted, image, Image.fromarray(mask)).save(path, quality=88)

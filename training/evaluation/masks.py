"""Scores a segmentation network on images with masks, at the images' own size, as the service answers.

One map: upsampled, foreground where it reaches ceil(255 * threshold). Several: each upsampled, the largest.
Pixels are counted in one table over all images; from it come the IoU of each class and their mean.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from quatserve.service.imaging.images import Resize, Target, decode, resize
from quatserve.training.data.kitti import IGNORED
from quatserve.training.data.masks import MASKS, read_target
from quatserve.training.data.store import MAX_PIXELS
from quatserve.training.errors import UserError
from quatserve.training.evaluation.road_metrics import first_road_value
from quatserve.training.loop.prediction import Predictor

WORST = 10


@dataclass(frozen=True)
class MaskEvaluation:
    labels: tuple[str, ...]  # background first
    counts: NDArray[np.int64]  # (classes, classes) pixels: row true, column predicted
    image_ious: dict[str, float]  # mean over the foreground classes that are in the image or were found in it

    @property
    def ious(self) -> dict[str, float]:
        return dict(zip(self.labels, class_ious(self.counts), strict=True))

    def as_json(self) -> dict[str, Any]:
        foreground = [self.ious[name] for name in self.labels[1:]]
        worst = sorted(self.image_ious.items(), key=lambda item: item[1])[:WORST]
        return {
            "images": len(self.image_ious),
            "mean_iou": _mean(foreground),
            "iou": {name: None if math.isnan(iou) else iou for name, iou in self.ious.items()},
            "pixels": self.counts.tolist(),
            "worst": dict(worst),
        }


def evaluate_masks(
    predict: Predictor,
    data: Path,
    names: Sequence[str],
    labels: Sequence[str],
    *,
    height: int,
    width: int,
    threshold: float,
    progress: bool,
) -> MaskEvaluation:
    """Score `predict` on the named images below `data`; one image at a time is in memory."""
    classes = len(labels) + 1
    counts = np.zeros((classes, classes), np.int64)
    ious: dict[str, float] = {}
    target = Target(height, width, Resize.STRETCH)
    for name in tqdm(names, desc="evaluate", unit="img", disable=not progress, leave=False):
        rgb = decode((data / name).read_bytes(), MAX_PIXELS)
        mask = f"{Path(name).stem}.png"
        truth = read_target((data / MASKS / mask).read_bytes(), len(labels), mask)
        if truth.size != rgb.size:
            raise UserError(f"{MASKS}/{mask} is {truth.size} where its image is {rgb.size}")
        found = found_classes(predict(resize(rgb, target)[None])[0], rgb.size, threshold)
        table = pixel_table(np.asarray(truth), found, classes)
        counts += table
        ious[name] = _mean(class_ious(table)[1:])
    return MaskEvaluation(("background", *labels), counts, ious)


def found_classes(maps: NDArray[np.uint8], size: tuple[int, int], threshold: float) -> NDArray[np.uint8]:
    """Classes of the pixels of an image of (width, height), from (H, W) or (classes, H, W) values."""

    def enlarged(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.asarray(Image.fromarray(values).resize(size, Image.Resampling.BILINEAR))

    if maps.ndim == 2:
        return (enlarged(maps) >= first_road_value(threshold)).astype(np.uint8)
    found: NDArray[np.uint8] = np.stack([enlarged(values) for values in maps]).argmax(0).astype(np.uint8)
    return found


def pixel_table(truth: NDArray[np.uint8], found: NDArray[np.uint8], classes: int) -> NDArray[np.int64]:
    """(classes, classes) pixels: row true, column found; pixels that do not count are left out."""
    valid = truth != IGNORED
    pairs = truth[valid].astype(np.int64) * classes + found[valid]
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def class_ious(counts: NDArray[np.int64]) -> list[float]:
    """Intersection over union of each class; NaN where neither truth nor prediction has any."""
    agreed = counts.diagonal()
    union = counts.sum(0) + counts.sum(1) - agreed
    return [int(a) / int(u) if u else math.nan for a, u in zip(agreed, union, strict=True)]


def _mean(values: Sequence[float]) -> float:
    """Of the classes that are there; 1 where there is nothing to find and nothing was found."""
    there = [value for value in values if not math.isnan(value)]
    return sum(there) / len(there) if there else 1.0

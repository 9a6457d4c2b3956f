"""Scores a road network on a split of the frames.

It is scored twice: at its own size, and at the size of the frames, its map upsampled as the service upsamples
it. Frames stream through in small batches; only the maps are kept, for the contact sheet.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from quatserve.training.data.kitti import Frame, open_rgb, resized, target_of
from quatserve.training.errors import UserError
from quatserve.training.evaluation.road_metrics import Mask, RoadScores, frame_iou, road_scores, value_counts
from quatserve.training.loop.prediction import Predictor

BATCH = 4


@dataclass(frozen=True)
class FrameResult:
    frame: Frame
    values: Mask  # the map at the network's size
    iou: float  # at the frame's size


@dataclass(frozen=True)
class RoadEvaluation:
    network_size: RoadScores
    frame_size: RoadScores
    results: tuple[FrameResult, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "frames": len(self.results),
            "network_size": asdict(self.network_size),
            "frame_size": asdict(self.frame_size),
        }


def evaluate_road(
    predict: Predictor,
    frames: Sequence[Frame],
    *,
    height: int,
    width: int,
    threshold: float = 0.5,
    progress: bool = False,
) -> RoadEvaluation:
    """Score `predict`, a function of images of (height, width), on `frames`, pooled over all of them."""
    small, full = np.zeros((2, 2, 256), np.int64)
    results = []
    for frame, values in _maps(predict, frames, height, width, progress):
        truth = open_rgb(frame.truth)
        small += value_counts(values, target_of(resized(truth, height, width, nearest=True)))
        upsampled, targets = at_frame_size(values, frame), target_of(truth)
        if upsampled.shape != targets.shape:
            raise UserError(
                f"{frame.truth} is {truth.width} x {truth.height} where its frame is "
                f"{upsampled.shape[1]} x {upsampled.shape[0]}: get both again"
            )
        full += value_counts(upsampled, targets)
        results.append(FrameResult(frame, values, frame_iou(upsampled, targets, threshold)))
    return RoadEvaluation(road_scores(small, threshold), road_scores(full, threshold), tuple(results))


def at_frame_size(values: Mask, frame: Frame) -> Mask:
    """Resize a uint8 map to the size of its frame, bilinearly."""
    with Image.open(frame.image) as image:
        return np.asarray(resized(Image.fromarray(values), image.height, image.width))


def _maps(
    predict: Predictor, frames: Sequence[Frame], height: int, width: int, progress: bool
) -> Iterator[tuple[Frame, Mask]]:
    with tqdm(total=len(frames), desc="evaluate", unit="frame", disable=not progress, leave=False) as bar:
        for start in range(0, len(frames), BATCH):
            part = frames[start : start + BATCH]
            images = [np.asarray(resized(open_rgb(frame.image), height, width)) for frame in part]
            yield from zip(part, predict(np.stack(images)), strict=True)
            bar.update(len(part))

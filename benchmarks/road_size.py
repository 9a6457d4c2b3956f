"""The most IoU a road network of a given input size can reach: python benchmarks/road_size.py --data data

Held-out ground truth is shrunk to each size and enlarged again by the rule of the service. "Soft" keeps the
shrunk map's grey levels, as a perfect network's probabilities would; "hard" thresholds it first. Last, what
is left for a mask that is right but goes on to the frame's lower border, where drawn areas may not.
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from quatserve.training.data.kitti import IGNORED, list_frames, open_rgb, split_frames, target_of

BORDER_ROWS = 4
SIZES = ((48, 160), (64, 208), (72, 240), (80, 264), (93, 310))
Map = NDArray[np.uint8]


def resized(levels: Map, height: int, width: int) -> Map:
    return np.asarray(Image.fromarray(levels).resize((width, height), Image.Resampling.BILINEAR))


def ceiling(targets: list[Map], height: int, width: int, *, soft: bool) -> float:
    """Pooled IoU of ground truth that went through a map of height x width."""
    intersection = union = 0
    for target in targets:
        road, valid = target == 1, target != IGNORED
        levels = resized(road.astype(np.uint8) * 255, height, width)
        if not soft:
            levels = (levels >= 128).astype(np.uint8) * 255
        found = resized(levels, *target.shape) >= 128
        intersection += int((found & road & valid).sum())
        union += int(((found | road) & valid).sum())
    return intersection / union


def to_the_border(targets: list[Map]) -> float:
    """Pooled IoU of ground truth whose last rows have road wherever the row above them has."""
    intersection = union = 0
    for target in targets:
        road, valid = target == 1, target != IGNORED
        found = road.copy()
        found[-BORDER_ROWS:] |= road[-BORDER_ROWS - 1]
        intersection += int((found & road & valid).sum())
        union += int(((found | road) & valid).sum())
    return intersection / union


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    _, held = split_frames(list_frames(parser.parse_args().data))
    targets = [target_of(open_rgb(frame.truth)) for frame in held]
    for height, width in SIZES:
        soft, hard = (ceiling(targets, height, width, soft=soft) for soft in (True, False))
        print(f"{height} x {width}: soft {soft:.4f}, hard {hard:.4f}")
    print(f"road to the lower border: {to_the_border(targets):.4f}")


if __name__ == "__main__":
    main()

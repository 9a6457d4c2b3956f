"""Draws a contact sheet of frames with the road that a network found, from the worst frame to the best.

The frames are KITTI's, whose licence is not ours: such a picture stays on the machine that made it.
"""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from quatserve.training.data.kitti import open_rgb, target_of
from quatserve.training.evaluation.road import FrameResult, at_frame_size
from quatserve.training.evaluation.road_metrics import Mask, road_mask
from quatserve.training.loop.checkpoint import write_bytes

COLUMNS, ROWS = 3, 7
TILE = (620, 187)  # width, height
GAP, HEADER = 12, 64
PAPER, INK = (250, 250, 248), (30, 30, 30)
FOUND, INVENTED, MISSED = (38, 166, 91), (222, 60, 48), (52, 101, 224)
OPACITY = 0.5


def draw_overlays(results: Sequence[FrameResult], threshold: float, title: str, path: Path) -> None:
    chosen = spread(sorted(results, key=lambda result: np.nan_to_num(result.iou)), COLUMNS * ROWS)
    rows = -(-len(chosen) // COLUMNS)
    sheet = Image.new("RGB", (_offset(COLUMNS, TILE[0]), HEADER + _offset(rows, TILE[1])), PAPER)
    _draw_header(sheet, title)
    for i, result in enumerate(chosen):
        row, column = divmod(i, COLUMNS)
        sheet.paste(_tile(result, threshold), (_offset(column, TILE[0]), HEADER + _offset(row, TILE[1])))
    picture = io.BytesIO()
    sheet.save(picture, "PNG")
    write_bytes(path, picture.getvalue())


def spread(ranked: Sequence[FrameResult], count: int) -> list[FrameResult]:
    """Pick at most `count` frames, evenly by rank, with the first and the last."""
    picks = np.linspace(0, len(ranked) - 1, min(count, len(ranked))).round().astype(int)
    return [ranked[i] for i in picks]


def overlay(image: Image.Image, found: NDArray[np.bool_], targets: Mask) -> Image.Image:
    """Tint road that was found green, false road red, missed road blue; leave ignored pixels alone."""
    pixels = np.asarray(image).astype(np.float32)
    road, background = targets == 1, targets == 0
    for where, colour in ((found & road, FOUND), (found & background, INVENTED), (~found & road, MISSED)):
        pixels[where] += OPACITY * (np.array(colour, np.float32) - pixels[where])
    return Image.fromarray(pixels.round().astype(np.uint8))


def _tile(result: FrameResult, threshold: float) -> Image.Image:
    values = at_frame_size(result.values, result.frame)
    targets = target_of(open_rgb(result.frame.truth))
    tile = overlay(open_rgb(result.frame.image), road_mask(values, threshold), targets)
    tile = tile.resize(TILE, Image.Resampling.LANCZOS)
    caption = f"{result.frame.name}   IoU {result.iou:.3f}"
    ImageDraw.Draw(tile).text(
        (8, 6), caption, fill="white", font=ImageFont.load_default(17), stroke_width=2, stroke_fill="black"
    )
    return tile


def _draw_header(sheet: Image.Image, title: str) -> None:
    draw = ImageDraw.Draw(sheet)
    draw.text((GAP, 10), title, fill=INK, font=ImageFont.load_default(22))
    x = GAP
    for colour, meaning in ((FOUND, "road, found"), (INVENTED, "not road, found"), (MISSED, "road, missed")):
        draw.rectangle((x, 45, x + 16, 59), fill=colour)
        draw.text((x + 24, 42), meaning, fill=INK, font=ImageFont.load_default(17))
        x += 190


def _offset(index: int, size: int) -> int:
    return GAP + index * (size + GAP)

"""From the network's road map to the PNG of a response: mask, heatmap or overlay. Pure functions."""

import io
import math
from enum import StrEnum

from PIL import Image

from quatserve.service.imaging.images import Pixels

DEFAULT_THRESHOLD = 0.5  # a pixel is road from this probability on
OVERLAY_COLOUR = (60, 220, 110)


class Output(StrEnum):
    MASK = "mask"
    HEATMAP = "heatmap"
    OVERLAY = "overlay"


def render(
    road: Pixels, size: tuple[int, int], output: Output, threshold: float, photo: Image.Image | None
) -> tuple[bytes, float]:
    """The PNG at (width, height), and the fraction of it that is road. Only an overlay needs the photo."""
    heatmap = enlarge(road, size)
    mask = mask_of(heatmap, threshold)
    if output is Output.OVERLAY:
        assert photo is not None
        picture = overlay(photo, mask)
    else:
        picture = mask if output is Output.MASK else heatmap
    return png(picture), road_fraction(mask)


def enlarge(road: Pixels, size: tuple[int, int]) -> Image.Image:
    """The network's map at (width, height) of the upright upload."""
    return Image.fromarray(road).resize(size, Image.Resampling.BILINEAR)


def mask_of(heatmap: Image.Image, threshold: float) -> Image.Image:
    """255 where the value is at least ceil(255 * threshold), else 0."""
    level = math.ceil(255 * threshold)
    return heatmap.point([255 if value >= level else 0 for value in range(256)])


def road_fraction(mask: Image.Image) -> float:
    return mask.histogram()[255] / (mask.width * mask.height)


def overlay(rgb: Image.Image, mask: Image.Image) -> Image.Image:
    """The photo, blended half and half with the overlay colour where the mask is set."""
    tinted = Image.blend(rgb, Image.new("RGB", rgb.size, OVERLAY_COLOUR), 0.5)
    return Image.composite(tinted, rgb, mask)


def png(image: Image.Image) -> bytes:
    """Encoded for speed, not for size: the client is waiting."""
    stream = io.BytesIO()
    image.save(stream, "PNG", compress_level=1)
    return stream.getvalue()

"""Bytes to an upright RGB image, to the network's input, and from its road map to a PNG. Pure functions."""

import io
import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from quatserve.service.artifact import Description, Resize
from quatserve.service.errors import ImageError, UnreadableImageError
from quatserve.service.imaging.inspect import open_header

Pixels = NDArray[np.uint8]
ORIENTATION_TAG = 0x0112
EXIF_SOURCES = frozenset({"exif", "Raw profile type exif"})
ORIENTATION_SOURCES = EXIF_SOURCES | {"xmp", "XML:com.adobe.xmp"}
MAX_EXIF_BYTES = 2**20  # in more the orientation is not looked for
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
BAND_ROWS = 64  # of an image with transparency, laid over white at once
OVERLAY_COLOUR = (60, 220, 110)


class Output(StrEnum):
    MASK = "mask"
    HEATMAP = "heatmap"
    OVERLAY = "overlay"


@dataclass(frozen=True, slots=True)
class Target:
    """What a network wants: its size, and the rule that takes an image there."""

    height: int
    width: int
    resize: Resize

    @classmethod
    def of(cls, description: Description) -> "Target":
        return cls(description.height, description.width, description.resize)


def upright_rgb(image: Image.Image) -> Image.Image:
    """First frame, upright, RGB: alpha over white, 16 bits scaled, CMYK converted."""
    try:
        image.load()
        turn = UPRIGHT.get(_orientation(image))
        rgb = _rgb(image)
    except ImageError:
        raise
    except Exception as error:
        raise UnreadableImageError("the image is damaged") from error
    return rgb if turn is None else rgb.transpose(turn)


def _orientation(image: Image.Image) -> int:
    """As the EXIF says; whatever is no number there, or cannot be read, turns nothing."""
    if image.info.keys().isdisjoint(ORIENTATION_SOURCES):
        return 1
    if any(len(image.info.get(source, b"")) > MAX_EXIF_BYTES for source in EXIF_SOURCES):
        return 1  # a value of it may be two million fractions, each an object
    try:
        found = image.getexif().get(ORIENTATION_TAG)
    except Exception:  # noqa: BLE001  # Pillow raises what it likes on a damaged block; the pixels are whole
        return 1
    return found if isinstance(found, int) else 1


def _grey_of_16_bits(image: Image.Image) -> Image.Image:
    """The high byte, which is what Pillow itself keeps of 16-bit colour; the transparent value is white."""
    wide = np.asarray(image)  # uint16 or int32: a wider copy of a large image would be a gigabyte
    high = wide >> 8
    grey = high.clip(0, 255, out=high).astype(np.uint8)
    if (clear := image.info.get("transparency")) is not None:
        grey[wide == clear] = 255
    return Image.fromarray(grey)


def _over_white(image: Image.Image) -> Image.Image:
    """In bands: the steps in between, each as large as the image, would be half a gigabyte of the largest."""
    white = Image.new("RGB", image.size, "white")
    for top in range(0, image.height, BAND_ROWS):
        bottom = min(top + BAND_ROWS, image.height)
        band = image.crop((0, top, image.width, bottom)).convert("RGBA")
        white.paste(band, (0, top), band)
    return white


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        return _grey_of_16_bits(image).convert("RGB")
    if image.has_transparency_data:
        return _over_white(image)
    return image if image.mode == "RGB" else image.convert("RGB")


def fit(rgb: Image.Image, target: Target) -> Pixels:
    """The network's input, uint8 [height, width, 3]; an image already of that size is untouched."""
    if target.resize is Resize.CENTRE_SQUARE and rgb.width != rgb.height:
        rgb = rgb.crop(_centre_square(rgb.width, rgb.height))
    if rgb.size != (target.width, target.height):
        rgb = rgb.resize((target.width, target.height), Image.Resampling.BILINEAR)
    return np.frombuffer(rgb.tobytes(), np.uint8).reshape(target.height, target.width, 3)


def _centre_square(width: int, height: int) -> tuple[int, int, int, int]:
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def decode(data: bytes, max_pixels: int) -> Image.Image:
    """Bytes to an upright RGB image."""
    return upright_rgb(open_header(data, max_pixels))


def enlarge(road: Pixels, size: tuple[int, int]) -> Image.Image:
    """The network's map at (width, height) of the upright upload."""
    return Image.fromarray(road).resize(size, Image.Resampling.BILINEAR)


def mask_of(heatmap: Image.Image, threshold: float) -> Image.Image:
    """255 where the value reaches ceil(255 * threshold), else 0."""
    level = math.ceil(255 * threshold)
    return heatmap.point([255 if value >= level else 0 for value in range(256)])


def road_fraction(mask: Image.Image) -> float:
    return mask.histogram()[255] / (mask.width * mask.height)


def overlay(rgb: Image.Image, mask: Image.Image) -> Image.Image:
    """The photo with half of the overlay colour mixed in where there is road."""
    tinted = Image.blend(rgb, Image.new("RGB", rgb.size, OVERLAY_COLOUR), 0.5)
    return Image.composite(tinted, rgb, mask)


def png(image: Image.Image) -> bytes:
    """Encoded fast rather than small: the client is waiting."""
    stream = io.BytesIO()
    image.save(stream, "PNG", compress_level=1)
    return stream.getvalue()

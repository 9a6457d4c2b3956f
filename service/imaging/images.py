"""From a file to an upright RGB image, and from that to the network's input. Pure functions."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from quatserve.service.artifact import Description
from quatserve.service.artifact import Resize as Resize  # training knows of the service this room alone
from quatserve.service.errors import ImageError as ImageError
from quatserve.service.errors import UnreadableImageError
from quatserve.service.imaging.inspect import open_header
from quatserve.service.imaging.memory import check_memory

Pixels = NDArray[np.uint8]
ORIENTATION_TAG = 0x0112
EXIF_SOURCES = frozenset({"exif", "Raw profile type exif"})
ORIENTATION_SOURCES = EXIF_SOURCES | {"xmp", "XML:com.adobe.xmp"}
MAX_EXIF_BYTES = 2**20  # the orientation in a larger block is ignored
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
BAND_ROWS = 64  # rows of a transparent image that are laid over white at a time


@dataclass(frozen=True, slots=True)
class Target:
    """The size of a network's input, and the rule that scales an image to it."""

    height: int
    width: int
    resize: Resize

    @classmethod
    def of(cls, description: Description) -> "Target":
        return cls(description.height, description.width, description.resize)


def upright_rgb(image: Image.Image) -> Image.Image:
    """The first frame, upright, as RGB: alpha over white, 16 bits scaled, CMYK converted."""
    try:
        image.load()
        turn = UPRIGHT.get(_orientation(image))
        rgb = _rgb(image)
    except (ImageError, MemoryError):
        raise
    except Exception as error:
        check_memory(image.width * image.height)
        raise UnreadableImageError("the image is damaged") from error
    return rgb if turn is None else rgb.transpose(turn)


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation; 1 (upright) where it is absent, unreadable or not a number."""
    if image.info.keys().isdisjoint(ORIENTATION_SOURCES):
        return 1
    if any(len(image.info.get(source, b"")) > MAX_EXIF_BYTES for source in EXIF_SOURCES):
        return 1  # one value may hold two million fractions, and each becomes an object
    try:
        found = image.getexif().get(ORIENTATION_TAG)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  # Pillow raises many types on a damaged block; the pixels are intact
        return 1
    return found if isinstance(found, int) else 1


def _grey_of_16_bits(image: Image.Image) -> Image.Image:
    """The high byte, as Pillow itself does for 16-bit colour; the transparent value becomes white."""
    wide = np.asarray(image)  # uint16 or int32: a wider copy of a large image would be a gigabyte
    high = wide >> 8
    grey = high.clip(0, 255, out=high).astype(np.uint8)
    if (clear := image.info.get("transparency")) is not None:
        grey[wide == clear] = 255
    return Image.fromarray(grey)


def _over_white(image: Image.Image) -> Image.Image:
    """In bands: for the largest image, the intermediate copies would take half a gigabyte."""
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


def resize(rgb: Image.Image, target: Target) -> Pixels:
    """The network's input, uint8 [height, width, 3]; an image of that size is not changed."""
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

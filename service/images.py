"""Bytes to an upright RGB image, to the network's input, and from its road map to a PNG. Pure functions."""

import io
import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from service.artifact import Resize

Pixels = NDArray[np.uint8]
SIGNATURES = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"RIFF": "WEBP", b"BM": "BMP"}
FORMATS = tuple(SIGNATURES.values())
OTHER_SIGNATURES = (b"GIF8", b"II*\x00", b"MM\x00*", b"\x00\x00\x01\x00", b"%PDF", b"<svg", b"<?xml")
START_OF_SCAN = b"\xff\xda"
MAX_SCANS = 16  # of a JPEG of the largest size, and more of a smaller one; encoders write ten
MAX_SIDE = 65_535  # Pillow's tables for resizing grow with the sides, not with the pixels
RUN_LENGTHS = (1, 2)  # of 8 and of 4 bits: Pillow decodes them in Python, slowly
MAX_RUN_LENGTH_PIXELS = 2**20
HEADER_READS = 2_048  # of a JPEG segment there are four, of a PNG chunk three; 256 segments hold 16 MiB
BYTES_PER_READ = 64  # on average, of what follows the header: encoders write pieces of thousands
RUN_LENGTH_READS_PER_PIXEL = 4  # a run is two, and as many end a line
ORIENTATION_TAG = 0x0112
ORIENTATION_SOURCES = frozenset({"exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"})
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

# Our own bound is a setting and is checked before decoding; Pillow's would only warn, and on a thread.
Image.MAX_IMAGE_PIXELS = None


class ImageError(Exception):
    """ImageError
    ├── UnreadableImageError     not an image, or a damaged one
    ├── UnsupportedFormatError   an image, but of a format that is not served
    └── TooManyPixelsError       larger than the bound, found before decoding
    """

    index: int | None = None  # which image of several, set by whoever counts them


class UnreadableImageError(ImageError):
    """Not an image, or a damaged one."""


class UnsupportedFormatError(ImageError):
    """An image, but of a format that is not served."""


class TooManyPixelsError(ImageError):
    """Larger than the bound, found before decoding."""


class _CountedReads(io.BytesIO):
    """A file in memory that may be read so many times.

    Pillow walks through segments, chunks and runs in Python, whose cost is in their number and not in their
    bytes: millions of empty ones hold the interpreter for seconds, and all other clients with it.
    """

    def __init__(self, data: bytes, reads: int) -> None:
        super().__init__(data)
        self.left = reads

    def read(self, size: int | None = -1, /) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise UnreadableImageError("the image is in too many small pieces")
        return super().read(size)


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


def format_of(data: bytes) -> str:
    """The format by its first bytes: names and headers lie."""
    for signature, name in SIGNATURES.items():
        if data.startswith(signature):
            return name
    if data.startswith(OTHER_SIGNATURES) or data[4:8] == b"ftyp":
        raise UnsupportedFormatError(f"the image is not one of {', '.join(FORMATS)}")
    raise UnreadableImageError("the data does not begin like an image")


def open_header(data: bytes, max_pixels: int) -> Image.Image:
    """The image with its size known and checked; its pixels are not decoded yet."""
    if not data:
        raise UnreadableImageError("the image is empty")
    name = format_of(data)
    file = _CountedReads(data, HEADER_READS)
    try:
        image = Image.open(file, formats=(name,))
    except ImageError:
        raise
    except Exception as error:  # Pillow raises eight kinds and more on bad files
        raise UnreadableImageError(f"the {name} header cannot be read") from error
    _check_size(image, name, max_pixels)
    pixels = image.width * image.height
    if name == "JPEG":
        _check_scans(data.count(START_OF_SCAN), pixels, max_pixels)
    file.left += RUN_LENGTH_READS_PER_PIXEL * pixels if name == "BMP" else len(data) // BYTES_PER_READ
    return image


def _check_size(image: Image.Image, name: str, max_pixels: int) -> None:
    pixels = image.width * image.height
    if pixels > max_pixels:
        raise TooManyPixelsError(f"{image.width} x {image.height} pixels; at most {max_pixels:,} are taken")
    if max(image.size) > MAX_SIDE:
        raise TooManyPixelsError(
            f"{image.width} x {image.height} pixels; at most {MAX_SIDE:,} a side are taken"
        )
    if name == "BMP" and image.info["compression"] in RUN_LENGTHS and pixels > MAX_RUN_LENGTH_PIXELS:
        raise TooManyPixelsError(
            f"{pixels:,} pixels in run lengths; at most {MAX_RUN_LENGTH_PIXELS:,} are taken of such a BMP"
        )


def _check_scans(scans: int, pixels: int, max_pixels: int) -> None:
    """A progressive JPEG passes over all its pixels in every scan, and a scan may be fifty bytes."""
    if scans * pixels > MAX_SCANS * max_pixels:
        allowed = MAX_SCANS * max_pixels // pixels
        raise TooManyPixelsError(
            f"{scans} scans of {pixels:,} pixels; at most {allowed} of that size are taken"
        )


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

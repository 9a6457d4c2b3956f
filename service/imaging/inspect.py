"""Opens a file without decoding it, and refuses files that are small but expensive to decode."""

import io
import re

from PIL import Image

from quatserve.service.errors import (
    ImageError,
    TooManyPixelsError,
    UnreadableImageError,
    UnsupportedFormatError,
)
from quatserve.service.imaging.memory import check_memory

SIGNATURES = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"RIFF": "WEBP", b"BM": "BMP"}
FORMATS = tuple(SIGNATURES.values())
OTHER_SIGNATURES = (b"GIF8", b"II*\x00", b"MM\x00*", b"\x00\x00\x01\x00", b"%PDF", b"<svg", b"<?xml")
START_OF_IMAGE = 2  # bytes
START_OF_SCAN = b"\xff\xda"
END_OF_IMAGE = b"\xff\xd9"
MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
ARITHMETIC_FRAMES = frozenset(b"\xff" + bytes([kind]) for kind in range(0xC9, 0xD0) if kind != 0xCC)
FRAMES = frozenset(b"\xff" + bytes([kind]) for kind in (*range(0xC0, 0xC4), *range(0xC5, 0xC8), 0xDE))
NO_SEGMENT = frozenset(  # markers without a length: the next marker follows at once
    bytes([kind]) for kind in (*range(0xC0), 0xC8, *range(0xD0, 0xDA), *range(0xF0, 0xFE), 0xFF)
)
PACKED_CHUNKS = (b"zTXt", b"iTXt", b"iCCP")  # of a PNG: Pillow unpacks each, up to a megabyte
MAX_BLOCKS = {
    "JPEG": {b"Exif\0\0": 16},  # Pillow joins them; cameras write a few
    "PNG": dict.fromkeys(PACKED_CHUNKS, 128),
}
MAX_MARKERS = 50_000
MAX_SCANS = 16  # of a JPEG of the maximum size, more of a smaller one; encoders write ten
MAX_SIDE = 65_535  # Pillow's tables for resizing grow with the sides, not with the pixels
RUN_LENGTHS = (1, 2)  # of 8 and of 4 bits: Pillow decodes them in Python, slowly
MAX_RUN_LENGTH_PIXELS = 2**20
HEADER_READS = 2_048  # four per JPEG segment, three per PNG chunk; 256 segments hold 16 MiB
BYTES_PER_READ = 64  # minimum average after the header; encoders write pieces of thousands of bytes
RUN_LENGTH_READS_PER_PIXEL = 4  # two for a run of one pixel, two for the end of a line
IN_PIECES = "the image is in too many small pieces"

# Our own limit is a setting, checked before decoding. Pillow's only warns, on whichever thread decodes.
Image.MAX_IMAGE_PIXELS = None


class _CountedReads(io.BytesIO):
    """A file in memory that raises after `reads` calls of `read`.

    Pillow walks through segments, chunks and runs in Python, so their number costs time, not their bytes:
    millions of empty ones hold the interpreter for seconds, and with it every other client.
    """

    def __init__(self, data: bytes, reads: int) -> None:
        super().__init__(data)
        self.left = reads

    def read(self, size: int | None = -1, /) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise UnreadableImageError(IN_PIECES)
        return super().read(size)


def format_of(data: bytes) -> str:
    """The format by its signature; file names and content types are not trusted."""
    for signature, name in SIGNATURES.items():
        if data.startswith(signature):
            return name
    if data.startswith(OTHER_SIGNATURES) or data[4:8] == b"ftyp":
        raise UnsupportedFormatError(f"the image is not one of {', '.join(FORMATS)}")
    raise UnreadableImageError("the data does not begin like an image")


def open_header(data: bytes, max_pixels: int) -> Image.Image:
    """The image with its size checked; the pixels are not decoded yet."""
    if not data:
        raise UnreadableImageError("the image is empty")
    name = format_of(data)
    if name == "JPEG":
        _check_frame(data)
    _check_blocks(data, name)
    file = _CountedReads(data, HEADER_READS)
    try:
        image = Image.open(file, formats=(name,))
    except (ImageError, MemoryError):
        raise
    except Exception as error:  # Pillow raises at least eight types on bad files
        if name == "WEBP":  # its canvas is allocated with the header
            check_memory(min(_webp_pixels(data), max_pixels))
        raise UnreadableImageError(f"the {name} header cannot be read") from error
    _check_size(image, max_pixels)
    pixels = image.width * image.height
    if name == "JPEG":
        _check_scans(data, pixels, max_pixels)
    file.left += RUN_LENGTH_READS_PER_PIXEL * pixels if name == "BMP" else len(data) // BYTES_PER_READ
    return image


def _webp_pixels(data: bytes) -> int:
    """Width times height of the canvas, by the first chunk of the file."""
    if data[12:16] == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    elif data[12:16] == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    else:
        width, height = (int.from_bytes(data[at : at + 2], "little") & 0x3FFF for at in (26, 28))
    return width * height


def in_run_lengths(image: Image.Image) -> bool:
    """Whether it is a BMP that Pillow decodes in Python."""
    return image.format == "BMP" and image.info["compression"] in RUN_LENGTHS


def _check_blocks(data: bytes, name: str) -> None:
    """Bound the blocks that Pillow joins or unpacks."""
    for blocks, most in MAX_BLOCKS.get(name, {}).items():
        if data.count(blocks) > most:
            shown = blocks.rstrip(b"\0").decode()
            raise UnreadableImageError(f"the {name} has more than {most} blocks of {shown}")


def _check_size(image: Image.Image, max_pixels: int) -> None:
    pixels = image.width * image.height
    if pixels > max_pixels:
        raise TooManyPixelsError(f"{image.width} x {image.height} pixels; the limit is {max_pixels:,}")
    if max(image.size) > MAX_SIDE:
        raise TooManyPixelsError(
            f"{image.width} x {image.height} pixels; at most {MAX_SIDE:,} a side are accepted"
        )
    if in_run_lengths(image) and pixels > MAX_RUN_LENGTH_PIXELS:
        raise TooManyPixelsError(
            f"{pixels:,} pixels in run lengths; at most {MAX_RUN_LENGTH_PIXELS:,} are accepted of such a BMP"
        )


def _check_frame(data: bytes) -> None:
    """Check the header of a JPEG before Pillow reads it, which would keep every frame it finds."""
    at, frames = START_OF_IMAGE, 0
    for _ in range(HEADER_READS):
        marker = data[at : at + 2]
        if marker == START_OF_SCAN or len(marker) < 2:
            return
        if marker in ARITHMETIC_FRAMES:  # slow to decode, and no browser supports it
            raise UnsupportedFormatError("the JPEG uses arithmetic coding")
        frames += marker in FRAMES
        if frames > 1:
            raise UnreadableImageError("the JPEG has more than one frame")
        at = _after(marker, data, at)
    raise UnreadableImageError(IN_PIECES)


def _check_scans(data: bytes, pixels: int, max_pixels: int) -> None:
    """A progressive JPEG visits all its pixels in every scan, and a scan may have fifty bytes."""
    allowed = MAX_SCANS * max_pixels // max(1, pixels)
    if data.count(START_OF_SCAN) > allowed and _has_more_scans(data, allowed):
        raise TooManyPixelsError(f"at most {allowed} scans of {pixels:,} pixels are accepted")


def _has_more_scans(data: bytes, allowed: int) -> bool:
    """Count the scans up to the end of the image; phones append a video after it."""
    at, scans = START_OF_IMAGE, 0
    for _ in range(MAX_MARKERS):
        found = MARKER.search(data, at)
        if found is None or found[0] == END_OF_IMAGE:
            return False
        scans += found[0] == START_OF_SCAN
        if scans > allowed:
            return True
        at = _after(found[0], data, found.start())
    raise UnreadableImageError(IN_PIECES)


def _after(marker: bytes, data: bytes, at: int) -> int:
    """The end of the segment of a marker; the next byte if it has no segment."""
    segment = marker[:1] == b"\xff" and marker[1:] not in NO_SEGMENT
    return at + (2 + int.from_bytes(data[at + 2 : at + 4]) if segment else 1)

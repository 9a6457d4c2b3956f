"""Files that are refused before their pixels are decoded, and files that must not be."""

import struct
import zlib
from contextlib import nullcontext

import pytest
from PIL import Image

from quatserve.service.errors import TooManyPixelsError, UnreadableImageError, UnsupportedFormatError
from quatserve.service.imaging.images import decode
from tests.service.harness import encoded, noise
from tests.service.image_files import png_chunk, png_file, run_length_bmp

LIMIT = 1 << 24


@pytest.mark.parametrize(
    "data", [b"", b"x", b"hello world", b"RIFF1234WAVEfmt ", b"BM", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"]
)
def test_what_is_not_an_image_is_unreadable(data: bytes) -> None:
    with pytest.raises(UnreadableImageError):
        decode(data, LIMIT)


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "ICO"])
def test_other_image_formats_are_unsupported(kind: str) -> None:
    with pytest.raises(UnsupportedFormatError, match="PNG, JPEG, WEBP, BMP"):
        decode(encoded(Image.new("RGB", (16, 16)), kind), LIMIT)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
def test_a_truncated_file_is_unreadable(kind: str) -> None:
    data = encoded(noise(64, 64), kind)
    for length in (len(data) // 4, len(data) // 2, len(data) - 40):
        with pytest.raises(UnreadableImageError):
            decode(data[:length], LIMIT)


def test_size_is_checked_before_decoding() -> None:
    bomb = png_file(50_000, 50_000, 8, 2, b"")  # decoding it would fail, so the check came first
    with pytest.raises(TooManyPixelsError, match="50000 x 50000"):
        decode(bomb, LIMIT)


def test_the_limit_of_pixels_is_inclusive() -> None:
    data = encoded(noise(20, 10))
    assert decode(data, 200).size == (20, 10)
    with pytest.raises(TooManyPixelsError):
        decode(data, 199)


@pytest.mark.parametrize("size", [(65_536, 1), (1, 65_536)])
def test_each_side_has_a_limit(size: tuple[int, int]) -> None:
    """Pillow's tables for resizing grow with the sides, not with the pixels."""
    with pytest.raises(TooManyPixelsError, match="at most 65,535 a side"):
        decode(png_file(*size, 8, 2, b""), LIMIT)
    assert decode(encoded(noise(65_535, 1)), LIMIT).size == (65_535, 1)


def test_run_lengths_have_a_lower_limit_of_pixels() -> None:
    assert decode(run_length_bmp(64, 32), LIMIT).size == (64, 32)
    with pytest.raises(TooManyPixelsError, match="1,049,600 pixels in run lengths; at most 1,048,576"):
        decode(run_length_bmp(1025, 1024), LIMIT)


def segments(marker: bytes, content: bytes, count: int) -> bytes:
    """A JPEG with `count` segments inserted before its own."""
    whole = encoded(noise(24, 24), "JPEG")
    return whole[:2] + (b"\xff" + marker + struct.pack(">H", len(content) + 2) + content) * count + whole[2:]


PIECES = {
    "empty segments": segments(b"\xe5", b"", 50_000),
    "filling between segments": encoded(noise(24, 24), "JPEG")[:2] + b"\xff" * 50_000 + b"\xe5\0\2",
    "chunks before the image": png_file(1, 1, 8, 2, b"\0abc", png_chunk(b"prVt", b"") * 50_000),
    "chunks of the image": png_file(1, 1, 8, 2, b"\0abc", png_chunk(b"IDAT", b"") * 50_000),
    "ends of lines that are empty": run_length_bmp(64, 32, b"\0\0" * 50_000),
}


@pytest.mark.parametrize("data", PIECES.values(), ids=PIECES)
def test_too_many_small_pieces_are_refused(data: bytes) -> None:
    """Each costs Pillow microseconds, and some a copy of everything before them."""
    with pytest.raises(UnreadableImageError, match="in too many small pieces"):
        decode(data, LIMIT)


def test_too_many_blocks_of_exif_are_refused() -> None:
    assert decode(segments(b"\xe1", b"Exif\0\0" + bytes(10), 16), LIMIT).size == (24, 24)
    with pytest.raises(UnreadableImageError, match="more than 16 blocks of Exif"):
        decode(segments(b"\xe1", b"Exif\0\0" + bytes(10), 17), LIMIT)


def test_packed_chunks_are_counted_after_the_pixels_too() -> None:
    packed = png_chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(900_000)))
    whole = png_file(1, 1, 8, 2, b"\0abc")
    for count, data in ((128, whole[:33] + packed * 128 + whole[33:]), (129, whole[:-12] + packed * 129)):
        with pytest.raises(UnreadableImageError, match="blocks") if count > 128 else nullcontext():
            assert decode(data, LIMIT).size == (1, 1)


def test_a_second_frame_is_refused() -> None:
    """Pillow keeps three bytes of each as an object, whatever the first one said."""
    whole = encoded(noise(24, 24), "JPEG")
    at = whole.index(b"\xff\xc0")
    frame = whole[at : at + 2 + int.from_bytes(whole[at + 2 : at + 4])]
    for second in (frame, b"\xff\xde" + frame[2:], b"\xff\xf0\xff" + frame, b"\xff\x02\xff" + frame):
        with pytest.raises(UnreadableImageError, match="more than one frame"):
            decode(whole[:at] + second + whole[at:], LIMIT)


def test_scans_are_counted_to_the_end_of_the_image() -> None:
    """Phones append a video, which contains the same two bytes by chance."""
    whole = encoded(noise(24, 24), "JPEG", progressive=True)
    scans = whole.count(b"\xff\xda")
    assert decode(whole + b"\xff\xda" * 500, 24 * 24).size == (24, 24)
    last = whole[whole.rindex(b"\xff\xda") : -2]
    allowed = whole[:-2] + last * (16 - scans) + whole[-2:]
    assert decode(allowed, 24 * 24).size == (24, 24)
    with pytest.raises(TooManyPixelsError, match="at most 16 scans of 576 pixels"):
        decode(allowed[:-2] + last + whole[-2:], 24 * 24)
    hidden = b"\xff\x02\xff" + last * 40  # read as the length of a segment, this would be 65 kilobytes
    with pytest.raises(TooManyPixelsError, match="at most 16 scans"):
        decode(whole[:-2] + hidden + bytes(65_536) + whole[-2:], 24 * 24)
    with pytest.raises(UnreadableImageError, match="small pieces"):
        decode(whole[:-2] + b"\xff\x01" * 60_000 + b"\xff\xda" * 20, 24 * 24)


def test_arithmetic_coding_is_refused() -> None:
    whole = encoded(noise(24, 24), "JPEG")
    for kind in (b"\xc9", b"\xca"):
        with pytest.raises(UnsupportedFormatError, match="arithmetic"):
            decode(whole.replace(b"\xff\xc0", b"\xff" + kind, 1), LIMIT)
    profile = encoded(noise(24, 24), "JPEG", icc_profile=b"\xff\xc9" * 50_000)  # no marker here
    assert decode(profile, LIMIT).size == (24, 24)


def test_the_pieces_of_real_encoders_are_read() -> None:
    """A colour profile of 255 segments, a thousand chunks of 4 KiB, and one pixel per run."""
    jpeg = encoded(noise(24, 24), "JPEG", icc_profile=bytes(255 * 65_000))
    assert decode(jpeg, LIMIT).size == (24, 24)
    rows = b"".join(b"\0" + row.tobytes() for row in noise(1_000, 1_400))
    packed = zlib.compress(rows)
    chunks = b"".join(png_chunk(b"IDAT", packed[at : at + 4_096]) for at in range(0, len(packed), 4_096))
    assert len(chunks) > 4_000_000
    assert decode(png_file(1_000, 1_400, 8, 2, b"", chunks), LIMIT).size == (1_000, 1_400)
    assert decode(run_length_bmp(1, 5_000), LIMIT).size == (1, 5_000)

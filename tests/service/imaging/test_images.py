"""From a file to the network and back, against numpy and the contract's own words."""

import io
import struct
import tracemalloc
import zlib
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from quatserve.service.artifact import Resize
from quatserve.service.errors import (
    ImageError,
    TooManyPixelsError,
    UnreadableImageError,
    UnsupportedFormatError,
)
from quatserve.service.imaging import images
from quatserve.service.imaging.images import Target
from quatserve.service.imaging.inspect import open_header
from tests.service.harness import encoded, noise

LIMIT = 1 << 24
SQUARE = Target(32, 32, Resize.CENTRE_SQUARE)
WIDE = Target(24, 80, Resize.STRETCH)


def decoded(data: bytes) -> NDArray[np.uint8]:
    return np.asarray(images.decode(data, LIMIT))


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_file(width: int, height: int, depth: int, colour: int, rows: bytes, extra: bytes = b"") -> bytes:
    """A PNG written byte by byte: what Pillow itself does not write."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + header
        + extra
        + png_chunk(b"IDAT", zlib.compress(rows))
        + png_chunk(b"IEND", b"")
    )


def sixteen_bit_rows(values: NDArray[np.uint16]) -> bytes:
    return b"".join(b"\0" + row.astype(">u2").tobytes() for row in values.reshape(len(values), -1))


# --- RGB ---


def test_rgb_is_untouched() -> None:
    picture = noise(50, 40)
    np.testing.assert_array_equal(decoded(encoded(picture)), picture)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_laid_over_white(mode: str) -> None:
    rng = np.random.default_rng(0)
    channels = len(mode)
    picture = rng.integers(0, 256, (20, 30, channels), dtype=np.uint8)
    colour, alpha = picture[..., :-1].astype(float), picture[..., -1:].astype(float) / 255
    expected = np.broadcast_to(colour * alpha + 255 * (1 - alpha), (20, 30, 3))
    assert np.abs(decoded(encoded(Image.fromarray(picture, mode))) - expected).max() <= 1


def test_bands_leave_no_seam() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (3 * images.BAND_ROWS + 1, 5, 4), dtype=np.uint8)
    rows = [decoded(encoded(row[None])) for row in picture]
    np.testing.assert_array_equal(decoded(encoded(picture)), np.concatenate(rows))


def test_transparent_black_is_white() -> None:
    assert decoded(encoded(Image.new("RGBA", (5, 5), (0, 0, 0, 0)))).min() == 255


def test_a_palette_with_transparency_is_laid_over_white() -> None:
    picture = Image.new("P", (4, 1))
    picture.putpalette([255, 0, 0, 0, 255, 0])
    picture.putdata([0, 1, 0, 1])
    found = decoded(encoded(picture, transparency=1))
    np.testing.assert_array_equal(found[0], [[255, 0, 0], [255, 255, 255]] * 2)


def test_one_transparent_colour_is_white() -> None:
    picture = Image.new("RGB", (2, 1), (10, 20, 30))
    picture.putpixel((1, 0), (40, 50, 60))
    found = decoded(encoded(picture, transparency=(40, 50, 60)))
    np.testing.assert_array_equal(found[0], [[10, 20, 30], [255, 255, 255]])


def test_sixteen_bits_of_grey_are_scaled_not_clipped() -> None:
    values = np.linspace(0, 65535, 64 * 8).astype(np.uint16).reshape(8, 64)
    found = decoded(png_file(64, 8, 16, 0, sixteen_bit_rows(values)))
    assert np.abs(found - (values / 257)[..., None]).max() <= 1
    assert (found[0, 0, 0], found[-1, -1, 0]) == (0, 255)


def test_sixteen_bits_of_grey_and_of_colour_agree() -> None:
    values = np.random.default_rng(0).integers(0, 65536, (8, 16), dtype=np.uint16)
    grey = decoded(png_file(16, 8, 16, 0, sixteen_bit_rows(values)))
    colour = decoded(png_file(16, 8, 16, 2, sixteen_bit_rows(np.repeat(values[..., None], 3, 2))))
    np.testing.assert_array_equal(grey, colour)


def test_the_transparent_value_of_sixteen_bit_grey_is_white() -> None:
    values = np.array([[0, 1000, 60000]], np.uint16)
    mark = png_chunk(b"tRNS", struct.pack(">H", 1000))
    found = decoded(png_file(3, 1, 16, 0, sixteen_bit_rows(values), mark))
    assert found[0, :, 0].tolist() == [0, 255, 60000 >> 8]


def test_grey_wider_than_sixteen_bits_is_clipped() -> None:
    values = np.array([[-70_000, -1, 0, 300, 65_535, 65_536, 2**31 - 1]], np.int32)
    picture = Image.fromarray(values)
    assert picture.mode == "I"
    found = np.asarray(images.upright_rgb(picture))
    assert found[0, :, 0].tolist() == [0, 0, 0, 1, 255, 255, 255]


def test_sixteen_bits_of_grey_stay_small() -> None:
    """Eight bytes a pixel at most: of the largest image allowed, a quarter of a gigabyte."""
    data = png_file(1024, 1024, 16, 0, sixteen_bit_rows(np.full((1024, 1024), 1000, np.uint16)))
    image = open_header(data, LIMIT)
    image.load()
    tracemalloc.start()
    try:
        images.upright_rgb(image)
        assert tracemalloc.get_traced_memory()[1] <= 8 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_cmyk_is_converted() -> None:
    cmyk = Image.new("CMYK", (16, 16), (0, 255, 255, 0))  # red
    found = decoded(encoded(cmyk, "JPEG", quality=95))
    assert np.abs(found.astype(int) - [255, 0, 0]).max() <= 6


@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_other_modes_become_rgb(mode: str) -> None:
    picture = Image.fromarray(noise(20, 20)).convert(mode)
    np.testing.assert_array_equal(decoded(encoded(picture)), np.asarray(picture.convert("RGB")))


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_the_first_frame_of_an_animation_counts(kind: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "lime", "blue")]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
    np.testing.assert_array_equal(decoded(data)[0, 0], [255, 0, 0])


TURNS = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: np.swapaxes(a, 0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.swapaxes(np.rot90(a, 2), 0, 1),
    8: lambda a: np.rot90(a, 1),
    99: lambda a: a,  # not an orientation
}


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_exif_turns_the_image_upright(orientation: int, kind: str) -> None:
    stored = noise(30, 20)
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = decoded(encoded(Image.fromarray(stored), kind, exif=exif, lossless=True))
    np.testing.assert_array_equal(found, TURNS[orientation](stored))


def exif_with(kind: int, value: bytes) -> bytes:
    """An orientation of any type, written byte by byte."""
    return b"Exif\0\0II*\0" + struct.pack("<IHHHI4sI", 8, 1, 0x0112, kind, 1, value, 0)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize(
    "exif",
    [exif_with(2, b"x"), exif_with(7, b"\6"), exif_with(11, struct.pack("<f", 6)), b"Exif\0\0no TIFF at all"],
    ids=["ascii", "bytes", "float", "unreadable"],
)
def test_an_orientation_that_is_no_number_turns_nothing(exif: bytes, kind: str) -> None:
    assert images.decode(encoded(noise(30, 20), kind, exif=exif), LIMIT).size == (30, 20)


# --- to the network's size ---


@pytest.mark.parametrize("target", [SQUARE, WIDE])
def test_an_image_of_the_right_size_is_untouched(target: Target) -> None:
    picture = noise(target.width, target.height)
    np.testing.assert_array_equal(images.fit(Image.fromarray(picture), target), picture)


@pytest.mark.parametrize("size", [(64, 32), (32, 64), (33, 32), (100, 41)])
def test_the_centre_square_is_cut_out_before_scaling(size: tuple[int, int]) -> None:
    picture = noise(*size)
    side = min(size)
    left, top = (size[0] - side) // 2, (size[1] - side) // 2
    square = Image.fromarray(picture[top : top + side, left : left + side])
    expected = np.asarray(square.resize((32, 32), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(images.fit(Image.fromarray(picture), SQUARE), expected)


def triangle_filter(values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Antialiased bilinear along axis 0 by its definition: a triangle as wide as the step between samples."""
    scale = len(values) / size
    support = max(scale, 1.0)
    centres = (np.arange(size) + 0.5) * scale
    distance = np.abs((np.arange(len(values)) + 0.5)[None] - centres[:, None]) / support
    weights = np.clip(1 - distance, 0, None)
    return np.asarray(np.tensordot(weights / weights.sum(1, keepdims=True), values, 1))


def test_scaling_is_the_antialiased_triangle_filter() -> None:
    picture = noise(310, 93)
    rows = triangle_filter(picture.astype(float), WIDE.height)
    expected = triangle_filter(rows.swapaxes(0, 1), WIDE.width).swapaxes(0, 1)
    assert np.abs(images.fit(Image.fromarray(picture), WIDE) - expected).max() <= 1.01


# --- from the network ---


def test_every_level_and_threshold_follow_the_rule() -> None:
    levels = Image.fromarray(np.arange(256, dtype=np.uint8)[None])
    for threshold in np.linspace(0, 1, 101):
        mask = np.asarray(images.mask_of(levels, float(threshold)))[0]
        np.testing.assert_array_equal(mask == 255, np.arange(256) >= np.ceil(255 * threshold))
        assert set(mask.tolist()) <= {0, 255}


def test_road_fraction() -> None:
    assert images.road_fraction(Image.fromarray(np.array([[0, 255], [255, 255]], np.uint8))) == 0.75


# --- what is refused ---


@pytest.mark.parametrize(
    "data", [b"", b"x", b"hello world", b"RIFF1234WAVEfmt ", b"BM", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"]
)
def test_what_is_not_an_image_is_unreadable(data: bytes) -> None:
    with pytest.raises(UnreadableImageError):
        images.decode(data, LIMIT)


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "ICO"])
def test_other_formats_are_named_as_such(kind: str) -> None:
    with pytest.raises(UnsupportedFormatError, match="PNG, JPEG, WEBP, BMP"):
        images.decode(encoded(Image.new("RGB", (16, 16)), kind), LIMIT)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
def test_a_truncated_file_is_unreadable(kind: str) -> None:
    data = encoded(noise(64, 64), kind)
    for length in (len(data) // 4, len(data) // 2, len(data) - 40):
        with pytest.raises(UnreadableImageError):
            images.decode(data[:length], LIMIT)


def test_size_is_checked_before_decoding() -> None:
    bomb = png_file(50_000, 50_000, 8, 2, b"")  # decoding it would fail, so the check came first
    with pytest.raises(TooManyPixelsError, match="50000 x 50000"):
        images.decode(bomb, LIMIT)


def test_an_image_at_the_limit_is_taken_and_one_above_is_not() -> None:
    data = encoded(noise(20, 10))
    assert images.decode(data, 200).size == (20, 10)
    with pytest.raises(TooManyPixelsError):
        images.decode(data, 199)


@pytest.mark.parametrize("size", [(65_536, 1), (1, 65_536)])
def test_a_side_has_a_limit_of_its_own(size: tuple[int, int]) -> None:
    """Pillow's tables grow with a side, not with the pixels."""
    with pytest.raises(TooManyPixelsError, match="at most 65,535 a side"):
        images.decode(png_file(*size, 8, 2, b""), LIMIT)
    assert images.decode(encoded(noise(65_535, 1)), LIMIT).size == (65_535, 1)


def run_length_bmp(width: int, height: int, first: bytes = b"") -> bytes:
    """Pixels of colour 0 by the shortest codes: a pixel and the end of its line, a line at a time."""
    palette, codes = bytes(4 * 256), first + b"\1\0\0\0" * height + b"\0\1"
    offset = 14 + 40 + len(palette)
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(codes), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", offset + len(codes), 0, 0, offset) + header + palette + codes


def test_run_lengths_which_pillow_decodes_slowly_have_a_limit_of_their_own() -> None:
    assert images.decode(run_length_bmp(64, 32), LIMIT).size == (64, 32)
    with pytest.raises(TooManyPixelsError, match="1,049,600 pixels in run lengths; at most 1,048,576"):
        images.decode(run_length_bmp(1025, 1024), LIMIT)


def segments(marker: bytes, content: bytes, count: int) -> bytes:
    """A JPEG with so many segments before its own."""
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
def test_millions_of_small_pieces_are_not_read_to_the_end(data: bytes) -> None:
    """Each costs Pillow microseconds, and some cost it a copy of all before them."""
    with pytest.raises(UnreadableImageError, match="in too many small pieces"):
        images.decode(data, LIMIT)


def test_exif_that_pillow_joins_piece_by_piece_is_refused() -> None:
    assert images.decode(segments(b"\xe1", b"Exif\0\0" + bytes(10), 16), LIMIT).size == (24, 24)
    with pytest.raises(UnreadableImageError, match="more than 16 blocks of Exif"):
        images.decode(segments(b"\xe1", b"Exif\0\0" + bytes(10), 17), LIMIT)


def exif(values: int) -> bytes:
    """An orientation of so many fractions."""
    entry = struct.pack("<HHII", 0x0112, 5, values, 26)
    return b"II*\0" + struct.pack("<IH", 8, 1) + entry + bytes(4) + struct.pack("<II", 1, 1) * values


def test_an_orientation_of_a_million_numbers_is_not_read() -> None:
    tracemalloc.start()
    try:
        assert images.decode(encoded(noise(3, 2), exif=exif(1_000_000)), LIMIT).size == (3, 2)
        assert tracemalloc.get_traced_memory()[1] < 60_000_000  # the file itself, some times over
    finally:
        tracemalloc.stop()


def test_chunks_that_unpack_are_counted_behind_the_image_too() -> None:
    packed = png_chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(900_000)))
    whole = png_file(1, 1, 8, 2, b"\0abc")
    for count, data in ((128, whole[:33] + packed * 128 + whole[33:]), (129, whole[:-12] + packed * 129)):
        with pytest.raises(UnreadableImageError, match="blocks") if count > 128 else nullcontext():
            assert images.decode(data, LIMIT).size == (1, 1)


def test_a_second_frame_is_refused() -> None:
    """Pillow keeps three bytes of each as an object, whatever the first said."""
    whole = encoded(noise(24, 24), "JPEG")
    at = whole.index(b"\xff\xc0")
    frame = whole[at : at + 2 + int.from_bytes(whole[at + 2 : at + 4])]
    for second in (frame, b"\xff\xde" + frame[2:], b"\xff\xf0\xff" + frame, b"\xff\x02\xff" + frame):
        with pytest.raises(UnreadableImageError, match="more than one frame"):
            images.decode(whole[:at] + second + whole[at:], LIMIT)


def test_scans_are_counted_as_far_as_the_image_goes() -> None:
    """Behind it a phone may put a film, in which the same two bytes come by chance."""
    whole = encoded(noise(24, 24), "JPEG", progressive=True)
    scans = whole.count(b"\xff\xda")
    assert images.decode(whole + b"\xff\xda" * 500, 24 * 24).size == (24, 24)
    last = whole[whole.rindex(b"\xff\xda") : -2]
    allowed = whole[:-2] + last * (16 - scans) + whole[-2:]
    assert images.decode(allowed, 24 * 24).size == (24, 24)
    with pytest.raises(TooManyPixelsError, match="at most 16 scans of 576 pixels"):
        images.decode(allowed[:-2] + last + whole[-2:], 24 * 24)
    hidden = b"\xff\x02\xff" + last * 40  # read as the length of a segment, this would be 65 kilobytes
    with pytest.raises(TooManyPixelsError, match="at most 16 scans"):
        images.decode(whole[:-2] + hidden + bytes(65_536) + whole[-2:], 24 * 24)
    with pytest.raises(UnreadableImageError, match="small pieces"):
        images.decode(whole[:-2] + b"\xff\x01" * 60_000 + b"\xff\xda" * 20, 24 * 24)


def test_arithmetic_coding_is_refused() -> None:
    whole = encoded(noise(24, 24), "JPEG")
    for kind in (b"\xc9", b"\xca"):
        with pytest.raises(UnsupportedFormatError, match="arithmetic"):
            images.decode(whole.replace(b"\xff\xc0", b"\xff" + kind, 1), LIMIT)
    profile = encoded(noise(24, 24), "JPEG", icc_profile=b"\xff\xc9" * 50_000)  # where it means nothing
    assert images.decode(profile, LIMIT).size == (24, 24)


def test_as_many_pieces_as_encoders_write_are_read() -> None:
    """A colour profile of 255 segments, a thousand chunks of four kilobytes, and a pixel a run."""
    jpeg = encoded(noise(24, 24), "JPEG", icc_profile=bytes(255 * 65_000))
    assert images.decode(jpeg, LIMIT).size == (24, 24)
    rows = b"".join(b"\0" + row.tobytes() for row in noise(1_000, 1_400))
    packed = zlib.compress(rows)
    chunks = b"".join(png_chunk(b"IDAT", packed[at : at + 4_096]) for at in range(0, len(packed), 4_096))
    assert len(chunks) > 4_000_000
    assert images.decode(png_file(1_000, 1_400, 8, 2, b"", chunks), LIMIT).size == (1_000, 1_400)
    assert images.decode(run_length_bmp(1, 5_000), LIMIT).size == (1, 5_000)


SEEDS = [encoded(noise(24, 24), kind) for kind in ("PNG", "JPEG", "WEBP", "BMP")]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=8))
def test_damage_ends_in_an_image_or_in_an_image_error(data: bytes, changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(data)
    for position, value in changes:
        damaged[position % len(damaged)] = value
    try:
        picture = images.decode(bytes(damaged), 1 << 16)
    except ImageError:
        return
    assert picture.mode == "RGB"


def test_png_encoding_loses_nothing() -> None:
    picture = noise(30, 20)
    np.testing.assert_array_equal(
        np.asarray(Image.open(io.BytesIO(images.png(Image.fromarray(picture))))), picture
    )

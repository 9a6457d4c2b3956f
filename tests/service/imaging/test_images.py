"""From a file to an upright RGB image, and to the network's input: against numpy and the contract."""

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from quatserve.service.artifact import Resize
from quatserve.service.errors import ImageError
from quatserve.service.imaging.images import BAND_ROWS, Target, decode, resize, upright_rgb
from quatserve.service.imaging.inspect import open_header
from tests.service.harness import encoded, noise
from tests.service.image_files import png_chunk, png_file, sixteen_bit_rows

LIMIT = 1 << 24
SQUARE = Target(32, 32, Resize.CENTRE_SQUARE)
WIDE = Target(24, 80, Resize.STRETCH)


def decoded(data: bytes) -> NDArray[np.uint8]:
    return np.asarray(decode(data, LIMIT))


# --- RGB ---


def test_rgb_is_not_changed() -> None:
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


def test_bands_are_joined_without_a_seam() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (3 * BAND_ROWS + 1, 5, 4), dtype=np.uint8)
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
    found = np.asarray(upright_rgb(picture))
    assert found[0, :, 0].tolist() == [0, 0, 0, 1, 255, 255, 255]


def test_sixteen_bit_grey_takes_eight_bytes_per_pixel() -> None:
    """A quarter of a gigabyte for the largest image that is accepted."""
    data = png_file(1024, 1024, 16, 0, sixteen_bit_rows(np.full((1024, 1024), 1000, np.uint16)))
    image = open_header(data, LIMIT)
    image.load()
    tracemalloc.start()
    try:
        upright_rgb(image)
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
def test_only_the_first_frame_of_an_animation_is_used(kind: str) -> None:
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
def test_an_orientation_that_is_not_a_number_is_ignored(exif: bytes, kind: str) -> None:
    assert decode(encoded(noise(30, 20), kind, exif=exif), LIMIT).size == (30, 20)


def exif(values: int) -> bytes:
    """EXIF with an orientation of `values` fractions."""
    entry = struct.pack("<HHII", 0x0112, 5, values, 26)
    return b"II*\0" + struct.pack("<IH", 8, 1) + entry + bytes(4) + struct.pack("<II", 1, 1) * values


def test_an_orientation_of_a_million_fractions_is_not_read() -> None:
    tracemalloc.start()
    try:
        assert decode(encoded(noise(3, 2), exif=exif(1_000_000)), LIMIT).size == (3, 2)
        assert tracemalloc.get_traced_memory()[1] < 60_000_000  # a few copies of the file
    finally:
        tracemalloc.stop()


SEEDS = [encoded(noise(24, 24), kind) for kind in ("PNG", "JPEG", "WEBP", "BMP")]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=8))
def test_a_damaged_file_gives_an_image_or_an_image_error(data: bytes, changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(data)
    for position, value in changes:
        damaged[position % len(damaged)] = value
    try:
        picture = decode(bytes(damaged), 1 << 16)
    except ImageError:
        return
    assert picture.mode == "RGB"


# --- to the network's size ---


@pytest.mark.parametrize("target", [SQUARE, WIDE])
def test_an_image_of_the_right_size_is_not_changed(target: Target) -> None:
    picture = noise(target.width, target.height)
    np.testing.assert_array_equal(resize(Image.fromarray(picture), target), picture)


@pytest.mark.parametrize("size", [(64, 32), (32, 64), (33, 32), (100, 41)])
def test_the_centre_square_is_cropped_before_scaling(size: tuple[int, int]) -> None:
    picture = noise(*size)
    side = min(size)
    left, top = (size[0] - side) // 2, (size[1] - side) // 2
    square = Image.fromarray(picture[top : top + side, left : left + side])
    expected = np.asarray(square.resize((32, 32), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(resize(Image.fromarray(picture), SQUARE), expected)


def triangle_filter(values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Antialiased bilinear scaling along axis 0, by definition: a triangle as wide as the sample step."""
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
    assert np.abs(resize(Image.fromarray(picture), WIDE) - expected).max() <= 1.01

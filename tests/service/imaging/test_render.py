"""From the network's road map to a PNG."""

import io

import numpy as np
import pytest
from PIL import Image

from quatserve.service.imaging.render import Output, mask_of, png, render, road_fraction
from tests.service.harness import noise


def test_the_mask_is_set_from_the_threshold_on() -> None:
    levels = Image.fromarray(np.arange(256, dtype=np.uint8)[None])
    for threshold in np.linspace(0, 1, 101):
        mask = np.asarray(mask_of(levels, float(threshold)))[0]
        np.testing.assert_array_equal(mask == 255, np.arange(256) >= np.ceil(255 * threshold))
        assert set(mask.tolist()) <= {0, 255}


def test_road_fraction() -> None:
    assert road_fraction(Image.fromarray(np.array([[0, 255], [255, 255]], np.uint8))) == 0.75


def test_png_encoding_is_lossless() -> None:
    picture = noise(30, 20)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png(Image.fromarray(picture))))), picture)


@pytest.mark.parametrize("output", Output)
def test_each_output_is_a_picture_of_the_size_of_the_upload(output: Output) -> None:
    road = np.array([[0, 200], [0, 200]], np.uint8)  # the right half is road
    photo = Image.new("RGB", (40, 20), (200, 0, 0))
    content, fraction = render(road, (40, 20), output, 0.39, photo if output is Output.OVERLAY else None)
    picture = Image.open(io.BytesIO(content))
    left, right = picture.getpixel((0, 10)), picture.getpixel((39, 10))
    expected = {"mask": (0, 255), "heatmap": (0, 200), "overlay": ((200, 0, 0), (130, 110, 55))}
    assert (picture.size, (left, right), fraction) == ((40, 20), expected[output], 0.5)

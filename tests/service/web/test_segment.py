"""`POST /segment` over a real socket. The tiny network returns the red channel of its input."""

import io
import math

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.service.artifacts import SEGMENTER
from tests.service.harness import encoded, noise

SIZE = (80, 24)  # (width, height) of the network


def opened(response: httpx.Response) -> Image.Image:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "image/png"
    return Image.open(io.BytesIO(response.content))


def reference_map(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """By definition: resize to the network's size, take the red channel, resize back, all bilinear."""
    small = Image.fromarray(picture).resize(SIZE, Image.Resampling.BILINEAR)
    road = Image.fromarray(np.asarray(small)[..., 0])
    return np.asarray(road.resize((picture.shape[1], picture.shape[0]), Image.Resampling.BILINEAR))


@pytest.mark.parametrize("size", [(621, 187), SIZE, (33, 70), (1, 1), (7, 300)])
def test_a_heatmap_has_the_size_of_the_upload(client: httpx.Client, size: tuple[int, int]) -> None:
    picture = noise(*size)
    found = opened(client.post("/segment?output=heatmap", files={"file": encoded(picture)}))
    assert (found.size, found.mode) == (size, "L")
    np.testing.assert_array_equal(np.asarray(found), reference_map(picture))


@pytest.mark.parametrize("threshold", [None, 0.0, 0.2, 0.5, 0.613, 1.0])
def test_a_mask_is_the_heatmap_at_the_threshold(client: httpx.Client, threshold: float | None) -> None:
    picture = noise(200, 100, seed=3)
    params = {} if threshold is None else {"threshold": threshold}
    response = client.post("/segment", params=params, files={"file": encoded(picture)})
    found = opened(response)
    level = math.ceil(255 * (0.5 if threshold is None else threshold))
    expected = np.where(reference_map(picture) >= level, 255, 0)
    assert found.mode == "L"
    np.testing.assert_array_equal(np.asarray(found), expected)
    assert float(response.headers["x-road-fraction"]) == pytest.approx((expected == 255).mean(), abs=1e-6)


def test_the_default_output_is_the_mask(client: httpx.Client) -> None:
    data = encoded(noise(100, 50))
    plain, named = (client.post(path, files={"file": data}) for path in ("/segment", "/segment?output=mask"))
    assert plain.content == named.content


def test_an_overlay_tints_the_road_and_leaves_the_rest(client: httpx.Client) -> None:
    picture = noise(160, 60, seed=5)
    mask = reference_map(picture) >= 128
    found = np.asarray(opened(client.post("/segment?output=overlay", files={"file": encoded(picture)})))
    np.testing.assert_array_equal(found[~mask], picture[~mask])
    mixed = (picture[mask].astype(float) + np.array([60, 220, 110])) / 2
    assert np.abs(found[mask] - mixed).max() <= 1


def test_a_rotated_upload_is_answered_upright(client: httpx.Client) -> None:
    picture = noise(120, 60, seed=6)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    sideways = encoded(Image.fromarray(np.rot90(picture, 1)), exif=exif)
    found = opened(client.post("/segment?output=heatmap", files={"file": sideways}))
    np.testing.assert_array_equal(np.asarray(found), reference_map(picture))


def test_the_headers_have_model_version_and_timings(client: httpx.Client) -> None:
    headers = client.post("/segment", files={"file": encoded(noise(100, 50))}).headers
    assert (headers["x-model"], headers["x-model-version"]) == (SEGMENTER, "1")
    assert [part.split(";dur=")[0] for part in headers["server-timing"].split(", ")] == [
        "decode",
        "queue",
        "inference",
    ]
    assert all(float(part.split(";dur=")[1]) > 0 for part in headers["server-timing"].split(", "))


def test_a_raw_body_is_accepted(client: httpx.Client) -> None:
    picture = noise(90, 40)
    response = client.post(
        "/segment?output=heatmap", content=encoded(picture), headers={"content-type": "image/png"}
    )
    np.testing.assert_array_equal(np.asarray(opened(response)), reference_map(picture))

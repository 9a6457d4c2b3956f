"""Segmentation: one heatmap is fetched; slider, views and saved mask equal what the service sends."""

from pathlib import Path

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from playwright.sync_api import Page, expect

from quatserve.service.web.front_page import SAMPLES
from tests.service.harness import RunningService, encoded, noise
from tests.service.web.page.conftest import Open
from tests.service.web.page.driving import canvas, choose, opened, set_threshold

pytestmark = pytest.mark.browser
SIZE = (160, 60)
PICTURE = noise(*SIZE, seed=7)
THRESHOLDS = [0.0, 0.29, 0.5, 0.57, 0.8, 1.0]


def served(service: RunningService, output: str, threshold: float = 0.5) -> NDArray[np.uint8]:
    response = httpx.post(
        f"{service.url}/segment",
        params={"output": output, "threshold": threshold},
        files={"file": encoded(PICTURE)},
    )
    assert response.status_code == 200
    return opened(response.content)


@pytest.fixture
def page(open_page: Open) -> Page:
    """A page on which the picture has been segmented."""
    opened_page = open_page("/#road")
    choose(opened_page, encoded(PICTURE), "street.png")
    expect(opened_page.locator("#segmentation")).to_be_visible()
    return opened_page


def test_the_mask_at_the_slider_equals_that_of_the_service(page: Page, service: RunningService) -> None:
    page.get_by_text("Mask", exact=True).click()
    for threshold in THRESHOLDS:
        set_threshold(page, threshold)
        expected = served(service, "mask", threshold)
        np.testing.assert_array_equal(canvas(page), expected)
        fraction = (expected[..., 0] == 255).mean()
        expect(page.locator("#threshold-value")).to_have_text(f"{threshold:.2f} {100 * fraction:.1f} % road")


def test_the_views(page: Page, service: RunningService) -> None:
    np.testing.assert_allclose(
        canvas(page), served(service, "overlay"), atol=1
    )  # Pillow rounds halves otherwise
    page.get_by_text("Photo", exact=True).click()
    np.testing.assert_array_equal(canvas(page), PICTURE)
    page.get_by_text("Overlay", exact=True).click()
    assert not np.array_equal(canvas(page), PICTURE)


def test_the_slider_sends_no_request(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    before = canvas(page)
    for threshold in THRESHOLDS:
        set_threshold(page, threshold)
    assert not np.array_equal(canvas(page), before)
    assert asked == []


def test_the_slider_by_keyboard_and_screen_reader(page: Page) -> None:
    slider = page.get_by_role("slider", name="Threshold")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert slider.input_value() == "0.51"
    shown = page.locator("#threshold-value").inner_text()
    assert shown.startswith("0.51 ")
    expect(slider).to_have_attribute("aria-valuetext", shown.replace(" ", ", ", 1))
    expect(page.locator("#canvas")).to_have_attribute(
        "aria-label", f"The photo with the road marked, {shown[5:]}"
    )


def test_the_saved_mask(page: Page, service: RunningService) -> None:
    threshold = 0.37
    set_threshold(page, threshold)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save mask").click()
    assert download.value.suggested_filename == "street-mask.png"
    saved = opened(Path(download.value.path()).read_bytes())
    np.testing.assert_array_equal(saved, served(service, "mask", threshold))


def test_a_large_photo_is_shown_scaled_and_saved_at_full_size(open_page: Open) -> None:
    page = open_page("/#road")
    rows = np.linspace(0, 255, 1500).astype(np.uint8)
    large = np.repeat(np.repeat(rows[:, None, None], 2400, 1), 3, 2)
    choose(page, encoded(large))
    expect(page.locator("#segmentation")).to_be_visible()
    assert canvas(page).size < 3 * 2_100_000
    with page.expect_download() as download:
        page.get_by_role("button", name="Save mask").click()
    assert opened(Path(download.value.path()).read_bytes()).shape == (1500, 2400, 3)


def test_a_rotated_photo_is_shown_upright(open_page: Open) -> None:
    page = open_page("/#road")
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to see it upright
    left_red = np.zeros((40, 100, 3), np.uint8)
    left_red[:, :50, 0] = 250
    choose(page, encoded(Image.fromarray(left_red), "JPEG", quality=95, exif=exif))
    expect(page.locator("#segmentation")).to_be_visible()
    page.get_by_text("Mask", exact=True).click()
    mask = canvas(page)
    assert mask.shape == (100, 40, 3)
    assert mask[:40].all()
    assert not mask[60:].any()
    page.get_by_text("Photo", exact=True).click()
    assert canvas(page)[10, 20, 0] > 200


def test_the_sample(open_page: Open) -> None:
    page = open_page("/#road")
    page.get_by_role("button", name="a rendered street").click()
    expect(page.locator("#segmentation")).to_be_visible()
    expect(page.get_by_role("status")).to_contain_text("of the picture is road.")
    assert canvas(page).shape == opened((SAMPLES / "road.jpg").read_bytes()).shape
    assert "tiny-road, version 1" in page.locator("#facts").inner_text()
    assert "network" in page.locator("#facts").inner_text()

"""Classification: every source of an image, and the bars of the answer."""

import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
from playwright.sync_api import expect

from quatserve.service.web.front_page import SAMPLES
from tests.service.artifacts import LABELS, expected_probabilities, write_classifier
from tests.service.harness import RunningService, encoded, noise, plain, wait_until
from tests.service.web.page.conftest import Open
from tests.service.web.page.driving import bars, bring, canvas, choose, opened

pytestmark = pytest.mark.browser
REDDISH = (140, 120, 100)


def expected_bars(data: bytes) -> list[tuple[str, str]]:
    """By the definition of the tiny network, most probable first."""
    row = expected_probabilities(opened(data)[None])[0]
    return [(LABELS[i], f"{100 * row[i]:.1f} %") for i in np.argsort(-row)]


def test_a_chosen_file(open_page: Open) -> None:
    page = open_page()
    data = encoded(noise(32, 32, seed=4) // 2 + np.array([60, 10, 30], np.uint8))
    choose(page, data, "thing.png")
    assert bars(page) == expected_bars(data)
    best, share = expected_bars(data)[0]
    expect(page.get_by_role("status")).to_have_text(f"Most likely {best}, {share}.")
    expect(page.get_by_alt_text("thing.png")).to_be_visible()


def test_the_length_of_a_bar_is_its_probability(open_page: Open) -> None:
    page = open_page()
    choose(page, plain(REDDISH))
    for (_, share), row in zip(bars(page), page.locator("#bars li").all(), strict=True):
        widths = row.locator(".track").evaluate(
            "track => [track.firstChild.getBoundingClientRect().width, track.getBoundingClientRect().width]"
        )
        assert 100 * widths[0] / widths[1] == pytest.approx(float(share.split()[0]), abs=0.2)


def test_a_file_dropped_anywhere(open_page: Open) -> None:
    page = open_page()
    bring(page, "dragenter", plain(REDDISH))
    expect(page.locator("#drop")).to_have_class("drop over")
    bring(page, "drop", plain(REDDISH))
    assert bars(page) == expected_bars(plain(REDDISH))
    expect(page.locator("#drop")).to_have_class("drop")


def test_a_pasted_image(open_page: Open) -> None:
    page = open_page()
    bring(page, "paste", plain(REDDISH))
    assert bars(page) == expected_bars(plain(REDDISH))


def test_a_sample(open_page: Open) -> None:
    page = open_page()
    page.get_by_role("button", name="truck").click()
    assert bars(page) == expected_bars((SAMPLES / "truck.png").read_bytes())


def test_the_same_file_can_be_chosen_again(open_page: Open) -> None:
    page = open_page()
    for _ in range(2):
        with page.expect_response("**/classify**") as response:
            choose(page, plain(REDDISH))
        assert response.value.ok
        assert (
            page.locator("#file").input_value() == ""
        )  # otherwise the next choice would fire no change event
        assert bars(page) == expected_bars(plain(REDDISH))


def test_model_version_device_and_timings_are_shown(open_page: Open) -> None:
    page = open_page()
    expect(page.locator("#device")).to_have_text("Ready on CPU, int8")
    choose(page, plain(REDDISH))
    bars(page)
    facts = page.locator("#facts").inner_text()
    assert "tiny-colours, version 1" in facts
    assert re.search(r"decode [\d.]+ ms · wait [\d.]+ ms · network [\d.]+ ms · round trip [\d.]+ ms", facts)


def test_each_task_keeps_its_answer(open_page: Open) -> None:
    page = open_page()
    choose(page, plain(REDDISH))
    bars(page)
    page.get_by_role("link", name="Where is the road?").click()
    expect(page.locator("#classification")).to_be_hidden()
    choose(page, plain((200, 0, 0), (40, 30)))
    expect(page.locator("#segmentation")).to_be_visible()
    assert canvas(page).shape == (30, 40, 3)
    page.go_back()
    expect(page.locator("#segmentation")).to_be_hidden()
    assert bars(page) == expected_bars(plain(REDDISH))
    expect(page.get_by_role("link", name="What is it?")).to_have_attribute("aria-current", "page")


def test_each_image_is_uploaded_once(open_page: Open, service: RunningService) -> None:
    page = open_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.method))
    choose(page, plain(REDDISH))
    bars(page)
    assert asked.count("POST") == 1


def test_a_new_version_and_a_removed_model_are_noticed(
    open_page: Open, start: Callable[..., RunningService], tmp_path: Path
) -> None:
    write_classifier(tmp_path, name="colours")
    write_classifier(tmp_path, name="others")
    running = start(tmp_path)
    page = open_page(running=running)
    choose(page, plain(REDDISH))
    bars(page)
    write_classifier(tmp_path, 2, name="colours")
    running.signal(signal.SIGHUP)
    wait_until(lambda: httpx.get(f"{running.url}/models/colours").json()["version"] == 2)
    choose(page, plain(REDDISH))
    expect(page.locator("#facts")).to_contain_text("version 2")
    shutil.rmtree(tmp_path / "colours")
    running.signal(signal.SIGHUP)
    wait_until(lambda: httpx.get(f"{running.url}/models/colours").status_code == 404)
    choose(page, plain(REDDISH))
    expect(page.locator("#problem")).to_contain_text("No such model is served")
    expect(page.locator("#facts")).to_contain_text("others, version 1")


def test_one_of_several_models_can_be_chosen(
    open_page: Open, start: Callable[..., RunningService], tmp_path: Path
) -> None:
    write_classifier(tmp_path, name="colours")
    write_classifier(tmp_path, name="sure-colours", scale=1.0)
    page = open_page(running=start(tmp_path))
    choose(page, plain((140, 120, 100)))
    assert bars(page)[0] == ("red", "73.1 %")
    choice = page.get_by_role("combobox", name="Model")
    choice.focus()
    with page.expect_response("**/classify?model=sure-colours**"):
        choice.select_option("sure-colours")
    expect(page.locator("#bars .value").first).to_have_text("100.0 %")
    expect(choice).to_be_focused()
    page.get_by_role("link", name="Where is the road?").click()
    expect(page.get_by_role("status")).to_have_text("No model for this task is served here.")

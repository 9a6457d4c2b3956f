"""Accessibility: keyboard, screen readers, dark mode, phones."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.service.web.page.conftest import Open
from tests.service.web.page.driving import bars

pytestmark = pytest.mark.browser
RESULTS = {"classify": "#classification", "road": "#segmentation"}
SAMPLES = {"classify": "cat.png", "road": "road.jpg"}
TEXTS = [
    "h1",
    ".masthead p",
    ".tasks a",
    ".fine",
    ".samples h2",
    ".tiles button",
    "#status",
    "#facts dt",
    "footer a",
]
COLOURS = """selector => {
  const element = [...document.querySelectorAll(selector)].find((found) => found.checkVisibility());
  let behind = element;
  while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
  return [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor];
}"""


def ask_sample(page: Page, task: str) -> None:
    page.click(f"[data-sample='{SAMPLES[task]}']")
    expect(page.locator(RESULTS[task])).to_be_visible()


def luminance(colour: str) -> float:
    """By the definition of WCAG 2."""
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(open_page: Open, scheme: str) -> None:
    page = open_page(color_scheme=scheme)
    ask_sample(page, "classify")
    grounds = set()
    for selector in [*TEXTS, "#bars .label", "#bars .value", "#drop strong"]:
        text, ground = (luminance(colour) for colour in page.evaluate(COLOURS, selector))
        grounds.add(ground > 0.5)
        assert (max(text, ground) + 0.05) / (min(text, ground) + 0.05) >= 4.5, selector
    assert grounds == {scheme == "light"}


@pytest.mark.parametrize("task", RESULTS)
def test_the_answer_scrolls_into_view(open_page: Open, task: str) -> None:
    page = open_page(f"/#{task}", viewport={"width": 360, "height": 640}, reduced_motion="reduce")
    ask_sample(page, task)
    expect(page.locator(RESULTS[task])).to_be_in_viewport(ratio=0.5)


@pytest.mark.parametrize("task", RESULTS)
def test_nothing_overflows_on_a_phone(open_page: Open, task: str) -> None:
    page = open_page(f"/#{task}", viewport={"width": 320, "height": 640}, is_mobile=True, has_touch=True)
    ask_sample(page, task)
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    assert page.get_by_text("drop it anywhere").is_hidden()  # a phone has no drag and drop
    for control in page.locator(f"{RESULTS[task]} :is(button, input, canvas, img)").all():
        box = control.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 320


def test_the_page_can_be_used_by_keyboard_alone(open_page: Open) -> None:
    page = open_page()
    page.on("filechooser", lambda _: None)  # registered early, for slow machines
    page.get_by_role("link", name="Where is the road?").focus()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Choose an image")).to_be_focused()
    assert page.locator("#drop").evaluate("zone => getComputedStyle(zone).outlineStyle") == "solid"
    with page.expect_file_chooser():
        page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="airplane")).to_be_focused()
    page.keyboard.press("Enter")
    assert bars(page)
    page.get_by_role("link", name="Where is the road?").focus()
    page.keyboard.press("Enter")
    ask_sample(page, "road")
    page.get_by_role("radio", name="Overlay").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="Photo")).to_be_checked()
    expect(page.locator("#canvas")).to_have_attribute("aria-label", re.compile("^The photo, "))


@pytest.mark.parametrize("task", RESULTS)
def test_every_control_has_a_name(open_page: Open, task: str) -> None:
    page = open_page(f"/#{task}")
    ask_sample(page, task)
    outline = page.locator("body").aria_snapshot()
    nameless = re.findall(
        r"^\s*- (?:button|link|slider|radio|img|textbox|combobox)(?::|$)", outline, re.MULTILINE
    )
    assert nameless == []
    assert re.search(r"- (?:button|link)", outline)

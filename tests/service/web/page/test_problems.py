"""Errors: a sentence with a remedy, on a page that still works."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.service import faulty_service
from tests.service.artifacts import CLASSIFIER
from tests.service.faulty_service import HELD, HOLD_FILE
from tests.service.harness import Background, RunningService, plain, wait_until
from tests.service.web.page.conftest import Open
from tests.service.web.page.driving import bars, choose

pytestmark = pytest.mark.browser
GOOD = plain((140, 120, 100))
HELD_IMAGE = plain((HELD, 0, 0))
PROGRAM = (faulty_service.__file__,)
KEY = "a-key-of-ours"


def told(page: Page) -> str:
    expect(page.get_by_role("alert").locator("visible=true")).not_to_be_empty()
    return page.locator("#problem").inner_text()


@pytest.mark.parametrize(
    ("task", "data", "sentence"),
    [
        ("classify", b"these are words", "The image cannot be read: the data does not begin like an image."),
        ("road", b"", "The image cannot be read: the image is empty."),
        (
            "road",
            b"GIF89a..",
            "The image format is not supported: the image is not one of PNG, JPEG, WEBP, BMP.",
        ),
    ],
)
def test_a_file_that_is_not_an_image(open_page: Open, task: str, data: bytes, sentence: str) -> None:
    page = open_page(f"/#{task}")
    choose(page, data, "notes.txt")
    assert sentence in told(page)
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)  # it would not help
    expect(page.locator(".result").locator("visible=true")).to_have_count(0)


def test_a_problem_hides_the_last_answer_and_a_good_image_clears_it(open_page: Open) -> None:
    page = open_page(viewport={"width": 360, "height": 400}, reduced_motion="reduce")
    choose(page, GOOD)
    bars(page)
    page.evaluate("scrollTo(0, 0)")
    choose(page, b"words")
    told(page)
    expect(page.locator("#problem")).to_be_in_viewport()
    expect(page.locator("#classification")).to_be_hidden()
    choose(page, GOOD)
    bars(page)
    expect(page.locator("#problem")).to_be_hidden()


@pytest.fixture
def held(models_dir: Path) -> Iterator[Path]:
    """While the file exists, a run with HELD_IMAGE does not return."""
    file = models_dir / HOLD_FILE
    file.touch()
    yield file
    file.unlink(missing_ok=True)


def test_an_overloaded_service(open_page: Open, start: Callable[..., RunningService], held: Path) -> None:
    limits = {"max_batch": 1, "queue_images": 1, "max_images": 1, "queue_timeout_s": 20, "deadline_s": 30}
    running = start(program=PROGRAM, **limits)
    page = open_page(running=running)
    post = lambda: httpx.post(f"{running.url}/classify", files={"file": HELD_IMAGE}, timeout=40)  # noqa: E731
    work = [Background(post), Background(post)]
    wait_until(lambda: running.metric("quatserve_admitted_images", model=CLASSIFIER) == 2)
    choose(page, GOOD)
    message = told(page)
    assert message.startswith("The service is busy: the queue is full")
    assert re.search(r"Try again in (a second|\d+ seconds)\.", message)
    held.unlink()
    assert [call.result().status_code for call in work] == [200, 200]
    page.get_by_role("button", name="Try again").click()
    assert bars(page)[0][0] == "red"
    expect(page.locator("#problem")).to_be_hidden()


def test_the_last_image_wins(open_page: Open, start: Callable[..., RunningService], held: Path) -> None:
    patient = {
        "deadline_s": 60,
        "queue_timeout_s": 60,
        "stuck_after_s": 60,
    }  # so that nothing ends the first run
    page = open_page(running=start(program=PROGRAM, max_batch=1, **patient))
    choose(page, HELD_IMAGE)
    expect(page.get_by_role("status")).to_contain_text("Looking at")
    with page.expect_event(
        "requestfailed", lambda request: "/classify" in request.url
    ):  # nobody waits for it
        choose(page, plain((0, 200, 0)))
    held.unlink()
    assert bars(page)[0][0] == "green"
    expect(page.locator("#problem")).to_be_hidden()


def test_a_late_sample_does_not_replace_a_newer_image(open_page: Open) -> None:
    page = open_page()
    late: list[Route] = []
    page.route(
        "**/samples/cat.png", lambda route: late.append(route)
    )  # playwright does not accept list.append itself
    with page.expect_request("**/samples/cat.png"):
        page.get_by_role("button", name="cat").click()
    choose(page, GOOD, "mine.png")
    before = bars(page)
    with page.expect_response("**/samples/cat.png"):
        late[0].continue_()
    page.wait_for_timeout(300)
    assert bars(page) == before
    expect(page.get_by_alt_text("mine.png")).to_be_visible()


def test_trying_again_by_keyboard_keeps_the_focus(
    open_page: Open, start: Callable[..., RunningService]
) -> None:
    running = start()
    page = open_page(running=running)
    expect(page.locator("#device")).to_be_visible()
    running.stop()
    choose(page, GOOD)
    told(page)
    page.get_by_role("button", name="Try again").focus()
    page.keyboard.press("Enter")
    told(page)
    assert page.evaluate("document.activeElement.id") == "file"


def test_a_service_that_does_not_answer(open_page: Open, start: Callable[..., RunningService]) -> None:
    running = start()
    page = open_page(running=running)
    expect(page.locator("#device")).to_be_visible()
    assert running.stop() == 0
    choose(page, GOOD)
    assert told(page).startswith("The service did not answer.")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()


def test_a_service_with_keys(open_page: Open, start: Callable[..., RunningService]) -> None:
    page = open_page(running=start(api_keys=KEY))
    dialog = page.get_by_role("dialog", name="This service requires a key")
    expect(dialog).to_be_visible()
    page.get_by_label("API key").fill("not-it")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("That key is not known here.")
    page.get_by_label("API key").fill(
        f"\u201c{KEY}\u201d"
    )  # with a word processor's quotes, which no header can have
    page.keyboard.press("Enter")
    expect(page.get_by_label("API key")).to_have_value("")
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="Use this key").click()
    expect(page.locator("#device")).to_be_visible()
    choose(page, GOOD)
    assert bars(page)[0][0] == "red"
    page.reload()  # the tab keeps the key
    expect(page.locator("#device")).to_be_visible()
    expect(dialog).to_be_hidden()
    assert KEY not in page.url


def test_the_key_dialog_can_be_cancelled(open_page: Open, start: Callable[..., RunningService]) -> None:
    page = open_page(running=start(api_keys=KEY))
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert told(page).startswith("A valid API key is needed")
    page.get_by_role("button", name="Try again").click()
    page.get_by_label("API key").fill(KEY)
    page.keyboard.press("Enter")
    expect(page.locator("#device")).to_be_visible()

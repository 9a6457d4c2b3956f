"""One browser for all tests, a new page for each. After each test, its requests and errors are checked."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.service.harness import RunningService
from tests.service.web.page.chromium import chromium

Open = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


class Watch:
    """Records the requests and errors of a page."""

    def __init__(self, context: BrowserContext) -> None:
        self.requests: list[str] = []
        self.faults: list[str] = []
        context.on("request", lambda request: self.requests.append(request.url))
        context.on("weberror", lambda error: self.faults.append(str(error.error)))
        context.on("console", lambda message: self._console(message.text))

    def _console(self, text: str) -> None:
        if "Content Security Policy" in text:
            self.faults.append(text)

    def check(self, url: str) -> None:
        assert self.faults == []
        assert [found for found in self.requests if not found.startswith((url, "blob:"))] == []


@pytest.fixture
def open_page(browser: Browser, service: RunningService) -> Iterator[Open]:
    """Open the page of a service; it must send requests to this service only, and keep to its policy."""
    opened: list[tuple[BrowserContext, Watch, str]] = []

    def begin(path: str = "/", running: RunningService = service, **options: object) -> Page:
        context = browser.new_context(**options)  # type: ignore[arg-type]
        context.set_default_timeout(20_000)
        opened.append((context, Watch(context), running.url))
        page = context.new_page()
        page.goto(running.url + path)
        return page

    yield begin
    for context, watch, url in opened:
        context.close()
        watch.check(url)

"""The browser tests need a chromium that starts; if this fails, they all do."""

import shutil

import pytest
from playwright.sync_api import sync_playwright


@pytest.mark.browser
def test_chromium_runs_a_script() -> None:
    executable = shutil.which("chromium")
    assert executable, "no chromium on this machine; on Debian: apt install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_content("<title>closed</title><script>document.title = 'open'</script>")
        assert page.title() == "open"
        browser.close()

"""The page's files over a real socket: its policy, and that it loads nothing from other hosts."""

import re
from pathlib import Path

import httpx
import pytest

from quatserve.service.web.front_page import HERE, SAMPLES
from tests.service.conftest import Start

REFERENCE = re.compile(r"""(?:src|href)="([^"#]+)"|from "([^"]+)"|import "([^"]+)"|url\(([^)]+)\)""")
PAGE_FILES = sorted(path for path in (HERE / "page").iterdir())
MEDIA_TYPES = {
    ".html": {"text/html; charset=utf-8"},
    ".css": {"text/css; charset=utf-8"},
    ".js": {"text/javascript; charset=utf-8", "application/javascript"},  # by the version of Python
    ".svg": {"image/svg+xml"},
}


def test_the_policy_allows_own_content_only(client: httpx.Client) -> None:
    response = client.get("/")
    assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert set(re.findall(r"https?:|\*|data:", policy)) == set()
    assert response.headers["x-content-type-options"] == "nosniff"


def test_the_page_has_no_inline_script_or_style() -> None:
    page = (HERE / "page" / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\bsrc=)", page)


@pytest.mark.parametrize("path", PAGE_FILES, ids=lambda path: path.name)
def test_a_file_of_the_page_is_served_and_refers_to_served_ones(client: httpx.Client, path: Path) -> None:
    name = path.name
    response = client.get(f"/static/{name}")
    assert response.content == (HERE / "page" / name).read_bytes()
    assert response.headers["content-type"] in MEDIA_TYPES[path.suffix]
    assert response.headers["content-security-policy"] == client.get("/").headers["content-security-policy"]
    assert (response.headers["cache-control"], response.headers["referrer-policy"]) == (
        "no-cache",
        "no-referrer",
    )
    for match in REFERENCE.finditer(response.text):
        found = next(group for group in match.groups() if group)
        if "arxiv.org" not in found:  # a link to follow, nothing to load
            base = "/static/" if name != "index.html" else "/"
            assert client.get(base + found.removeprefix("./")).status_code == 200, found


def test_the_samples_are_offered(client: httpx.Client) -> None:
    offered = re.findall(r'data-sample="([^"]+)"', client.get("/").text)
    assert set(offered) == {path.name for path in SAMPLES.iterdir() if path.suffix in (".png", ".jpg")}
    assert len(offered) == 11
    for name in offered:
        assert client.get(f"/static/samples/{name}").content == (SAMPLES / name).read_bytes()


@pytest.mark.parametrize(
    "path",
    [
        *("nothing.js", "", "samples", "samples/", "samples/render_road.py", "samples/README.md"),
        *("../app.py", "..%2Fapp.py", "samples/../../app.py", "../front_page.py", "/etc/x.svg"),
        *("a%00.js", "a" * 300 + ".js"),
    ],
)
def test_other_files_are_not_served(client: httpx.Client, path: str) -> None:
    request = client.build_request("GET", "/static/")
    request.url = request.url.copy_with(raw_path=f"/static/{path}".encode())
    response = client.send(request)
    assert response.status_code == 404
    assert response.json()["type"] == "urn:quatserve:problem:not-found"


def test_an_unchanged_file_is_answered_with_304(client: httpx.Client) -> None:
    first = client.get("/static/main.js")
    again = client.get("/static/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/static/page.css", headers={"if-none-match": first.headers["etag"]}).status_code == 200


def test_the_page_needs_no_key(start: Start) -> None:
    running = start(api_keys="a-key")
    for path in ("/", "/static/main.js", "/static/samples/cat.png"):
        assert httpx.get(running.url + path).status_code == 200
    assert httpx.get(f"{running.url}/models").status_code == 401

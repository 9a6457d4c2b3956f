"""The page at `/`, and its files and sample images below `/static`."""

import os
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "cache-control": "no-cache",  # the browser asks each time, and gets 304 while its copy is current
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "referrer-policy": "no-referrer",
}
SUFFIXES = frozenset({".html", ".css", ".js", ".svg", ".png", ".jpg"})
HERE = Path(__file__).parent
SAMPLES = HERE.parent / "samples"


class PageFiles(StaticFiles):
    """Starlette's static files with the headers of the page; files of other kinds, such as code, are 404."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        return super().lookup_path(path) if Path(path).suffix in SUFFIXES else ("", None)

    def file_response(
        self,
        full_path: "os.PathLike[str] | str",
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(HEADERS)
        return response


def add_page(api: FastAPI) -> None:
    page = PageFiles(directory=HERE / "page")

    @api.get("/", include_in_schema=False)
    async def home(request: Request) -> Response:
        return await page.get_response("index.html", request.scope)

    api.mount("/static/samples", PageFiles(directory=SAMPLES))
    api.mount("/static", page)

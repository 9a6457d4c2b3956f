"""The page at `/`: the files of `page/` and the samples, read once, and a policy that shuts out the rest."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
}
HOME = "index.html"
HERE = Path(__file__).parent
SAMPLES = HERE.parent / "samples"


@dataclass(frozen=True)
class Asset:
    content: bytes
    media_type: str
    etag: str

    def response(self, request: Request) -> Response:
        """The file, or word that the browser's copy is still good: it asks each time, so none grows old."""
        headers = {
            "etag": self.etag,
            "cache-control": "no-cache",
            "content-security-policy": CONTENT_SECURITY_POLICY,
            "referrer-policy": "no-referrer",
        }
        if request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    return Asset(content, MEDIA_TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def assets(page: Path = HERE / "page", samples: Path = SAMPLES) -> dict[str, Asset]:
    """Name -> file. Whatever is not in here does not exist: a path from outside never meets the disk."""
    own = {path.name: _read(path) for path in page.iterdir() if path.suffix in MEDIA_TYPES}
    pictures = [path for path in samples.iterdir() if path.suffix in (".png", ".jpg")]
    return own | {f"samples/{path.name}": _read(path) for path in pictures}


def add_page(app: FastAPI) -> None:
    found = assets()

    @app.get("/", include_in_schema=False)
    async def home(request: Request) -> Response:
        return found[HOME].response(request)

    @app.get("/static/{name:path}", include_in_schema=False)
    async def static(name: str, request: Request) -> Response:
        if name not in found:
            raise HTTPException(404)
        return found[name].response(request)

"""The page at `/docs`. It loads nothing from other hosts, and its examples run as shown."""

import base64
import html
import io
from functools import cache
from typing import Any

from fastapi import FastAPI
from PIL import Image
from starlette.requests import Request
from starlette.responses import HTMLResponse

from quatserve.service.web.problems import ALL_PROBLEM_TYPES, MEDIA_TYPE

CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@cache
def example_image() -> str:
    """A small picture in base64, so that the examples need no file."""
    gradient = Image.linear_gradient("L").resize((32, 32))
    picture = Image.merge("RGB", (gradient, gradient.rotate(90), gradient.rotate(180)))
    stream = io.BytesIO()
    picture.quantize(16).save(stream, "PNG", optimize=True)
    return base64.b64encode(stream.getvalue()).decode()


def examples(base_url: str) -> dict[str, str]:
    """Commands to paste into a shell. The tests run each exactly as shown."""
    image = f"echo {example_image()} | base64 -d"
    return {
        "Classify an image": f"{image} | curl -sf -F file=@- '{base_url}/classify?top_k=3'",
        "The same, as a raw body": (
            f"{image} | curl -sf -H 'content-type: image/png' --data-binary @- {base_url}/classify"
        ),
        "Find the road": f"{image} | curl -sf -F file=@- '{base_url}/segment?output=mask' -o mask.png",
        "What is served": f"curl -sf {base_url}/models",
        "Is it ready": f"curl -sf {base_url}/readyz",
    }


def _routes(schema: dict[str, Any]) -> str:
    rows = []
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            notes = "".join(
                f"<br><code>?{p['name']}=</code> {html.escape(p.get('description', ''))}"
                for p in operation.get("parameters", [])
                if p["in"] == "query"
            )
            rows.append(
                f"<tr><td><code>{method.upper()} {path}</code><td>{html.escape(operation['summary'])}{notes}"
            )
    return "<table>" + "".join(rows) + "</table>"


def _problems() -> str:
    kinds = sorted(ALL_PROBLEM_TYPES, key=lambda kind: kind.status)
    rows = [f"<tr><td>{kind.status}<td><code>{kind.urn}</code><td>{kind.title}" for kind in kinds]
    return "<table>" + "".join(rows) + "</table>"


def docs_page(schema: dict[str, Any], base_url: str) -> str:
    """The HTML: routes, examples, errors."""
    blocks = "".join(
        f"<h3>{title}</h3><pre><code>{html.escape(command)}</code></pre>"
        for title, command in examples(base_url).items()
    )
    style = (
        "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
        "color-scheme:light dark}"
        "pre{white-space:pre-wrap;overflow-wrap:anywhere;padding:.8rem;border:1px solid #8886}"
        "td{vertical-align:top;padding:.3rem 1rem .3rem 0}"
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{schema['info']['title']}</title><style>{style}</style><h1>{schema['info']['title']}</h1>"
        f"<p>{schema['info']['description']} The schema is at <a href=openapi.json>openapi.json</a>. "
        "Where keys are set, add <code>-H 'Authorization: Bearer KEY'</code>."
        f"<h2>Routes</h2>{_routes(schema)}<h2>Examples</h2>{blocks}<h2>Errors</h2>"
        f"<p>Every error is a document of type <code>{MEDIA_TYPE}</code>.{_problems()}</html>"
    )


def add_docs(app: FastAPI) -> None:
    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        page = docs_page(app.openapi(), str(request.base_url).rstrip("/"))
        return HTMLResponse(page, headers={"content-security-policy": CONTENT_SECURITY_POLICY})

"""Fetches one file over HTTP into a directory, going on where an earlier attempt broke off."""

import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm

from quatserve.training.errors import UserError

BLOCK_BYTES = 2**16
TIMEOUT_S = 30
PARTIAL_CONTENT, RANGE_NOT_SATISFIABLE = 206, 416


def fetch(url: str, path: Path, *, progress: bool = False) -> Path:
    """`path`, once it is whole; until then `path`.part, with which the next attempt goes on."""
    if path.exists():
        return path
    part = path.with_name(path.name + ".part")
    try:
        _append(url, part, progress)
    except (OSError, HTTPException, ValueError) as error:
        raise UserError(
            f"{url} could not be fetched ({error}): run the same command again, it goes on where it stopped; "
            "or get the archive elsewhere and name it by --archive"
        ) from error
    return part.replace(path)


def _append(url: str, part: Path, progress: bool) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if have and error.code == RANGE_NOT_SATISFIABLE:
            return  # nothing is left to fetch: the digest tells whether it is the right file
        raise
    with response:
        resumed = response.status == PARTIAL_CONTENT  # otherwise the server sends the file from its beginning
        with part.open("ab" if resumed else "wb") as stream:
            _copy(response, stream, have if resumed else 0, part.name, progress)


def _copy(response: HTTPResponse, stream: BinaryIO, have: int, name: str, progress: bool) -> None:
    left = int(response.headers["Content-Length"]) if "Content-Length" in response.headers else None
    total = None if left is None else have + left
    with tqdm(
        total=total,
        initial=have,
        desc=name,
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        disable=not progress,
        leave=False,
    ) as bar:
        while block := response.read(BLOCK_BYTES):
            stream.write(block)
            bar.update(len(block))
    if total is not None and stream.tell() != total:
        raise HTTPException(f"{stream.tell():,} of {total:,} bytes came")

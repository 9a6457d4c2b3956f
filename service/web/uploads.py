"""Reads an HTTP body and splits it into image files, within limits on bytes, parts, time and memory."""

import asyncio
import re
from dataclasses import dataclass
from typing import Self

from starlette.types import Receive

from quatserve.service.errors import (
    BadParameterError,
    BodyTooLargeError,
    ClientGoneError,
    MalformedUploadError,
    SlowUploadError,
    TooManyImagesError,
    UnsupportedTypeError,
    UploadsFullError,
)

IMAGE_FIELDS = frozenset({b"file", b"files"})
MAX_PART_HEAD_BYTES = 4096
BOUNDARY = re.compile(rb';\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
DISPOSITION = re.compile(rb"(?:^|\r\n)content-disposition:[ \t]*form-data[ \t]*(;[^\r\n]*)", re.IGNORECASE)
MAX_LENGTH_DIGITS = 20  # of a Content-Length; the HTTP parser refuses longer ones, leading zeros aside
PARAMETER = re.compile(rb';[ \t]*([a-z*]+)=(?:"((?:[^"\\]|\\.)*)"|([^;"\s]*))', re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class UploadLimits:
    max_body_bytes: int
    max_images: int
    timeout_s: float


class UploadMemory:
    """Bounds the bytes that all request bodies hold together; when it is full, it refuses at once."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.reserved_bytes = 0

    def reserve(self) -> "UploadReservation":
        return UploadReservation(self)

    def add(self, count: int) -> None:
        if self.reserved_bytes + count > self._max_bytes:
            raise UploadsFullError(f"uploads already hold {self.reserved_bytes:,} bytes; retry in a second")
        self.reserved_bytes += count


class UploadReservation:
    """The part of the upload memory that one request uses, until its `with` block ends."""

    __slots__ = ("_memory", "reserved_bytes")

    def __init__(self, memory: UploadMemory) -> None:
        self._memory = memory
        self.reserved_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.reserved_bytes -= self.reserved_bytes

    def add(self, count: int) -> None:
        self._memory.add(count)
        self.reserved_bytes += count


def check_type(content_type: bytes) -> None:
    """Refuse a body that cannot be an image, before it is read."""
    if not content_type.lower().startswith((b"multipart/form-data", b"image/")):
        shown = content_type.decode("latin-1")[:80] or "none"
        raise UnsupportedTypeError(f"content type is {shown}; send multipart/form-data or an image type")


def check_length(declared: bytes, max_bytes: int) -> None:
    """Refuse a body whose declared length is over the limit, before it is read."""
    length = int(declared.lstrip(b"0")[:MAX_LENGTH_DIGITS] or b"0") if declared.isdigit() else 0
    if length > max_bytes:
        raise BodyTooLargeError(f"the body has {length:,} bytes; at most {max_bytes:,} are accepted")


async def read_body(receive: Receive, limits: UploadLimits, reservation: UploadReservation) -> bytes:
    """The whole body; raises at the first limit that it breaks."""
    chunks: list[bytes] = []
    try:
        async with asyncio.timeout(limits.timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError("the client disconnected while uploading")
                chunks.append(message.get("body", b""))
                if reservation.reserved_bytes + len(chunks[-1]) > limits.max_body_bytes:
                    raise BodyTooLargeError(
                        f"the body has more than the accepted {limits.max_body_bytes:,} bytes"
                    )
                reservation.add(len(chunks[-1]))
                if not message.get("more_body", False):
                    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
    except TimeoutError:
        raise SlowUploadError(f"the body did not arrive within {limits.timeout_s:g} s") from None


def images_of(content_type: bytes, body: bytes, max_images: int) -> list[bytes]:
    """The `file` and `files` parts of a form in their order, or the raw body itself."""
    if content_type[:6].lower() == b"image/":
        return [body]
    match = BOUNDARY.search(content_type)
    if match is None:
        raise MalformedUploadError("the content type multipart/form-data has no boundary")
    parts = split_form(body, match[1] or match[2], max_images)
    images = [data for name, data in parts if name in IMAGE_FIELDS]
    if not images:
        raise BadParameterError("the form has no part named file or files; one of them must hold the image")
    return images


def split_form(body: bytes, boundary: bytes, max_parts: int) -> list[tuple[bytes, bytes]]:
    """(name, data) of each part of multipart/form-data (RFC 7578).

    The whole body is in memory, so a few `find` calls per part replace a byte-wise state machine.
    """
    delimiter = b"--" + boundary
    parts: list[tuple[bytes, bytes]] = []
    if not body.startswith(delimiter):
        raise MalformedUploadError("the form does not start with its boundary")
    position = len(delimiter)
    while not body.startswith(b"--", position):
        if len(parts) == max_parts:
            raise TooManyImagesError(
                f"the form has more than {max_parts} parts; send fewer images per request"
            )
        head_end = body.find(b"\r\n\r\n", position, position + MAX_PART_HEAD_BYTES)
        data_end = body.find(b"\r\n" + delimiter, head_end + 4)
        if head_end < 0 or data_end < 0 or not body.startswith(b"\r\n", position):
            raise MalformedUploadError("the form is truncated, or one of its parts is malformed")
        parts.append((_name_of(body[position:head_end]), body[head_end + 4 : data_end]))
        position = data_end + 2 + len(delimiter)
    return parts


def _name_of(head: bytes) -> bytes:
    """The name of a part, from its Content-Disposition."""
    disposition = DISPOSITION.search(head)
    for key, quoted, plain in PARAMETER.findall(disposition[1]) if disposition else ():
        if key.lower() == b"name":
            return bytes(quoted or plain)
    raise MalformedUploadError("a part of the form has no name; each needs one in its Content-Disposition")

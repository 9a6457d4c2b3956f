"""The form parser against python-multipart, and the limits of a body."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from python_multipart import MultipartParser

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
from quatserve.service.web.uploads import (
    UploadLimits,
    UploadMemory,
    check_type,
    images_of,
    read_body,
    split_form,
)

LIMITS = UploadLimits(max_body_bytes=100, max_images=4, timeout_s=0.2)


def form(parts: list[tuple[str, bytes]], boundary: bytes = b"XX") -> bytes:
    pieces = [
        b'--%b\r\nContent-Disposition: form-data; name="%b"; filename="a.png"\r\n'
        b"Content-Type: image/png\r\n\r\n%b\r\n" % (boundary, name.encode(), data)
        for name, data in parts
    ]
    return b"".join(pieces) + b"--%b--\r\n" % boundary


def by_python_multipart(body: bytes, boundary: bytes) -> list[bytes]:
    """The data of each part, by the library that most servers use."""
    parts: list[bytearray] = []
    callbacks: Any = {
        "on_part_begin": lambda: parts.append(bytearray()),
        "on_part_data": lambda data, start, end: parts[-1].extend(data[start:end]),
    }
    parser = MultipartParser(boundary, callbacks)
    parser.write(body)
    parser.finalize()
    return [bytes(part) for part in parts]


TRICKY = st.sampled_from([b"\r\n", b"--", b"-", b"\r", b"\n", b"X", b"\r\n--", b"\r\n--X", b"\x00", b"abc"])
CONTENT = st.one_of(st.binary(max_size=60), st.lists(TRICKY, max_size=12).map(b"".join))


@settings(max_examples=400, deadline=None)
@given(st.lists(CONTENT, min_size=1, max_size=4))
def test_the_parser_agrees_with_python_multipart(contents: list[bytes]) -> None:
    boundary = b"XXboundaryXX"
    body = form([("files", content) for content in contents], boundary)
    found = [data for _, data in split_form(body, boundary, 4)]
    assert found == contents == by_python_multipart(body, boundary)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 200))
def test_malformed_forms_are_refused_or_read_but_never_crash(noise: bytes, cut: int) -> None:
    whole = form([("file", noise)])
    for body in (whole[:cut], noise, whole[:cut] + noise + whole[cut:]):
        try:
            parts = split_form(body, b"XX", 4)
        except (MalformedUploadError, TooManyImagesError):
            continue
        assert all(name in body and data in body for name, data in parts)


@pytest.mark.parametrize(
    "head",
    [
        b'Content-Disposition: form-data; name="file"',
        b"content-disposition:form-data;name=file",
        b'Content-Type: image/png\r\nCONTENT-DISPOSITION: form-data; filename="a; name=b.png"; name="file"',
        b"Content-Disposition: form-data; name=\"file\"; filename*=utf-8''%e2%82%ac.png",
    ],
)
def test_part_names_are_found_in_every_notation(head: bytes) -> None:
    body = b"--B\r\n" + head + b"\r\n\r\ndata\r\n--B--"
    assert images_of(b"multipart/form-data; boundary=B", body, 4) == [b"data"]


@pytest.mark.parametrize(
    "content_type", [b'multipart/form-data; boundary="a b"', b'Multipart/Form-Data; x=y; BOUNDARY="a b"']
)
def test_a_boundary_may_be_quoted(content_type: bytes) -> None:
    assert images_of(content_type, form([("file", b"1"), ("files", b"2")], b"a b"), 4) == [b"1", b"2"]


def test_other_parts_are_ignored_but_one_must_be_an_image() -> None:
    assert images_of(b"multipart/form-data; boundary=XX", form([("note", b"hi"), ("file", b"1")]), 4) == [
        b"1"
    ]
    with pytest.raises(BadParameterError, match="file or files"):
        images_of(b"multipart/form-data; boundary=XX", form([("note", b"hi")]), 4)


def test_parts_are_counted() -> None:
    assert len(split_form(form([("files", b"")] * 4), b"XX", 4)) == 4
    with pytest.raises(TooManyImagesError):
        split_form(form([("files", b"")] * 5), b"XX", 4)


def test_an_endless_part_head_is_refused() -> None:
    with pytest.raises(MalformedUploadError):
        split_form(b"--XX\r\nA: " + b"a" * 5000 + b"\r\n\r\n" + form([]), b"XX", 4)


@pytest.mark.parametrize(
    "content_type", [b"", b"text/plain", b"application/octet-stream", b"multipart/mixed", b"imagepng"]
)
def test_other_content_types_are_refused(content_type: bytes) -> None:
    with pytest.raises(UnsupportedTypeError):
        check_type(content_type)


# --- reading ---


class Feed:
    """An ASGI `receive` that returns the messages, then blocks."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._messages = list(messages)

    async def __call__(self) -> dict[str, Any]:
        if not self._messages:
            await asyncio.sleep(60)
        return self._messages.pop(0)


def chunk(data: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


def read(*messages: dict[str, Any], memory: UploadMemory | None = None) -> bytes:
    memory = memory or UploadMemory(1000)
    try:
        with memory.reserve() as reservation:
            return asyncio.run(read_body(Feed(*messages), LIMITS, reservation))
    finally:
        assert memory.reserved_bytes == 0  # whatever happened


def test_chunks_are_joined() -> None:
    assert read(chunk(b"a"), chunk(b""), chunk(b"bc", more=False)) == b"abc"


def test_a_body_at_the_limit_is_accepted_and_one_above_is_not() -> None:
    assert len(read(chunk(b"x" * 100, more=False))) == 100
    with pytest.raises(BodyTooLargeError):
        read(chunk(b"x" * 60), chunk(b"x" * 41))


def test_a_body_that_does_not_arrive_is_refused() -> None:
    with pytest.raises(SlowUploadError, match=r"0\.2 s"):
        read(chunk(b"x"))


def test_a_disconnect_while_uploading_is_noticed() -> None:
    with pytest.raises(ClientGoneError):
        read(chunk(b"x"), {"type": "http.disconnect"})


def test_all_bodies_together_are_bounded() -> None:
    memory = UploadMemory(100)
    with memory.reserve() as other:
        other.add(60)
        with pytest.raises(UploadsFullError), memory.reserve() as reservation:
            asyncio.run(read_body(Feed(chunk(b"x" * 41)), LIMITS, reservation))
        with memory.reserve() as reservation:
            body = asyncio.run(read_body(Feed(chunk(b"x" * 40, more=False)), LIMITS, reservation))
            assert len(body) == 40
    assert memory.reserved_bytes == 0

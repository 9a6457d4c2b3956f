"""Refuses graphs whose tensors lie in other files: onnxruntime would read any file that the graph names.

The service has no onnx package, so this reads the protobuf wire format itself. A message is a sequence of
(tag, value), where a tag is field << 3 | wire type. The messages that can hold a tensor are read in turn; all
other values, weights among them, are skipped by their length.
"""

from collections.abc import Iterator
from enum import Enum, auto

from quatserve.service.errors import ArtifactError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # wire types; ONNX does not use the other two
MAX_TAG = 2**32 - 1
MAX_VARINT_BYTES = 10
MAX_DEPTH = 100  # protobuf's own limit


class Message(Enum):
    """The messages of onnx.proto that lead to a tensor."""

    MODEL = auto()
    FUNCTION = auto()
    TRAINING = auto()
    GRAPH = auto()
    NODE = auto()
    ATTRIBUTE = auto()
    SPARSE = auto()
    TENSOR = auto()


FIELDS = {  # message -> number of a field -> the message that it holds
    Message.MODEL: {7: Message.GRAPH, 20: Message.TRAINING, 25: Message.FUNCTION},
    Message.FUNCTION: {7: Message.NODE, 11: Message.ATTRIBUTE},
    Message.TRAINING: {1: Message.GRAPH, 2: Message.GRAPH},
    Message.GRAPH: {1: Message.NODE, 5: Message.TENSOR, 15: Message.SPARSE},
    Message.NODE: {5: Message.ATTRIBUTE},
    Message.ATTRIBUTE: {
        **dict.fromkeys((5, 10), Message.TENSOR),
        **dict.fromkeys((6, 11), Message.GRAPH),
        **dict.fromkeys((22, 23), Message.SPARSE),
    },
    Message.SPARSE: {1: Message.TENSOR, 2: Message.TENSOR},
    Message.TENSOR: {},
}
EXTERNAL_DATA, DATA_LOCATION = 13, 14  # fields of a tensor; location 0 is the tensor itself


def refuse_external_data(model: bytes) -> None:
    """Raise ArtifactError if a tensor of the graph lies in another file, or if the bytes are no protobuf."""
    pending = [(Message.MODEL, memoryview(model), 0)]
    while pending:
        message, content, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise ArtifactError(f"the graph is nested more than {MAX_DEPTH} deep")
        inner = FIELDS[message]
        for field, value in _fields(content):
            if message is Message.TENSOR and (field == EXTERNAL_DATA or (field == DATA_LOCATION and value)):
                raise ArtifactError("the graph has external data: a tensor must lie in the graph itself")
            if field in inner and isinstance(value, memoryview):
                pending.append((inner[field], value, depth + 1))


def _fields(content: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Each field of a message with its value; ArtifactError where protobuf would not read on."""
    at, end = 0, len(content)
    while at < end:
        tag, at = _varint(content, at)
        if tag > MAX_TAG:  # protobuf cuts it off, and sees another field
            raise ArtifactError("the graph is not protobuf")
        wire = tag & 7
        if wire == VARINT:
            value, at = _varint(content, at)
            yield tag >> 3, value
            continue
        if wire == LENGTH:
            size, at = _varint(content, at)
        else:
            size = {FIXED64: 8, FIXED32: 4}.get(wire, end + 1)
        if size > end - at:
            raise ArtifactError("the graph is not protobuf")
        yield tag >> 3, content[at : at + size]
        at += size


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    """An integer in groups of seven bits, least first, and where it ends."""
    value = 0
    for index, byte in enumerate(content[at : at + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise ArtifactError("the graph is not protobuf")

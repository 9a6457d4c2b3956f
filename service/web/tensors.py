"""Tensors of the Open Inference Protocol v2: JSON, or JSON followed by raw bytes. Pure functions."""

import re
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from quatserve.service.artifact import INPUT_NAME, Description, Task
from quatserve.service.engine.session import OUTPUT_DTYPES, row_shape
from quatserve.service.errors import (
    BadParameterError,
    BodyTooLargeError,
    MalformedUploadError,
    TooManyImagesError,
)

HEADER_LENGTH = "inference-header-content-length"
LENGTH = re.compile("[0-9]{1,10}")
JSON_BYTES_PER_NUMBER = 8  # three digits and a comma, and as much again for spaces and brackets
JSON_BYTES_OVERHEAD = 64 * 1024  # names, shape, parameters
NOT_BYTES = "data must be whole numbers from 0 to 255"
DATATYPES = {np.dtype(np.uint8): "UINT8", np.dtype(np.float32): "FP32"}


@dataclass(frozen=True, slots=True)
class InferRequest:
    id: str
    images: NDArray[np.uint8]
    binary: bool  # whether the response has the output as raw bytes


def metadata(description: Description) -> dict[str, Any]:
    """The model's metadata in the format of the protocol."""
    output = OUTPUT_DTYPES[description.task]
    shape = [-1, description.height, description.width, 3]
    return {
        "name": description.name,
        "versions": [str(description.version)],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": INPUT_NAME, "datatype": "UINT8", "shape": shape}],
        "outputs": [
            {
                "name": description.output_name,
                "datatype": DATATYPES[output],
                "shape": [-1, *row_shape(description)],
                **(
                    {"parameters": {"labels": description.labels}}
                    if description.task is Task.CLASSIFICATION
                    else {}
                ),
            }
        ],
    }


def max_json_bytes(description: Description, max_images: int) -> int:
    """The size of the largest valid request. Parsing holds the interpreter lock, which delays all clients."""
    numbers = max_images * description.height * description.width * 3
    return JSON_BYTES_PER_NUMBER * numbers + JSON_BYTES_OVERHEAD


def _document(body: bytes, header_length: str | None, max_bytes: int) -> tuple[dict[str, Any], memoryview]:
    """The JSON part and the raw part of a request."""
    if header_length is not None and not (
        LENGTH.fullmatch(header_length) and int(header_length) <= len(body)
    ):
        raise MalformedUploadError(f"{HEADER_LENGTH} is not a length within the body")
    length = len(body) if header_length is None else int(header_length)
    if length > max_bytes:
        raise BodyTooLargeError(
            f"the JSON has {length:,} bytes, and may have {max_bytes:,}: send the numbers as raw bytes"
        )
    try:
        document = orjson.loads(body[:length])
    except orjson.JSONDecodeError as error:
        raise MalformedUploadError(f"the request is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise MalformedUploadError("the request is not a JSON object")
    return document, memoryview(body)[length:]


def _values(tensor: dict[str, Any], raw: memoryview, wanted: int) -> NDArray[np.uint8]:
    """The numbers of a tensor, from the raw bytes behind the JSON or from its `data`."""
    promised = _parameters(tensor).get("binary_data_size", 0)
    if type(promised) is not int or promised != len(raw):
        raise BadParameterError(
            f"{len(raw)} raw bytes follow the JSON; binary_data_size must have the same number"
        )
    if raw:
        return np.frombuffer(raw, np.uint8)
    numbers = _flat(tensor.get("data"), wanted)
    if set(map(type, numbers)) != {int}:
        raise BadParameterError(NOT_BYTES)
    try:
        return np.frombuffer(bytes(numbers), np.uint8)
    except ValueError:
        raise BadParameterError(NOT_BYTES) from None


def _flat(data: object, wanted: int) -> list[Any]:
    """Flatten nested lists. numpy would accept strings too, and pad them all to the longest."""
    if not isinstance(data, list):
        raise BadParameterError(NOT_BYTES)
    while data and set(map(type, data)) == {list}:
        if len(set(map(len, data))) > 1:
            raise BadParameterError("data is ragged")
        data = list(islice(chain.from_iterable(data), wanted + 1))
    if len(data) > wanted:
        raise BadParameterError(f"data holds more than the {wanted} numbers of the shape")
    return data


def _parameters(part: dict[str, Any]) -> dict[str, Any]:
    found = part.get("parameters", {})
    return found if isinstance(found, dict) else {}


def _only(parts: object, what: str) -> dict[str, Any]:
    if not (isinstance(parts, list) and len(parts) == 1 and isinstance(parts[0], dict)):
        raise BadParameterError(f"the request must have exactly one {what}")
    return parts[0]


def read_request(
    body: bytes, header_length: str | None, description: Description, max_images: int
) -> InferRequest:
    """The images of a request; raises if it is malformed or too large."""
    document, raw = _document(body, header_length, max_json_bytes(description, max_images))
    tensor = _only(document.get("inputs"), "input")
    size = [description.height, description.width, 3]
    shape = tensor.get("shape")
    count = shape[0] if isinstance(shape, list) and shape else 0
    if (tensor.get("name"), tensor.get("datatype")) != (INPUT_NAME, "UINT8"):
        raise BadParameterError(f"the input must be {INPUT_NAME} with datatype UINT8")
    if type(count) is not int or shape != [count, *size] or count < 1:
        raise BadParameterError(f"the shape must be [1 to {max_images}, {', '.join(map(str, size))}]")
    if count > max_images:
        raise TooManyImagesError(f"{count} images; at most {max_images} are accepted")
    wanted = count * description.height * description.width * 3
    values = _values(tensor, raw, wanted)
    if values.size != wanted:
        raise BadParameterError(f"{values.size} numbers do not fill the shape {shape}")
    binary = bool(_parameters(document).get("binary_data_output"))
    if "outputs" in document:
        output = _only(document["outputs"], "output")
        if output.get("name") != description.output_name:
            raise BadParameterError(f"the output must be {description.output_name}")
        binary = bool(_parameters(output).get("binary_data", binary))
    name = document.get("id")
    if not isinstance(name, str | None):
        raise BadParameterError("id must be a string")
    return InferRequest(name or "", values.reshape(count, *size), binary)


def write_response(
    request: InferRequest, description: Description, rows: list[NDArray[Any]]
) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a response."""
    values = np.stack(rows)
    output: dict[str, Any] = {
        "name": description.output_name,
        "datatype": DATATYPES[values.dtype],
        "shape": list(values.shape),
    }
    raw = values.tobytes() if request.binary else b""
    output |= (
        {"parameters": {"binary_data_size": len(raw)}}
        if request.binary
        else {"data": values.ravel().tolist()}
    )
    document = {
        "model_name": description.name,
        "model_version": str(description.version),
        "outputs": [output],
    }
    if request.id:
        document["id"] = request.id
    head = orjson.dumps(document)
    if not request.binary:
        return head, {"content-type": "application/json"}
    return head + raw, {"content-type": "application/octet-stream", HEADER_LENGTH: str(len(head))}

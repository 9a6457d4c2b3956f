"""Every error that a client can see, in one table: exception -> status -> stable type (RFC 9457)."""

import math
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from quatserve.service.errors import (
    BadParameterError,
    BatcherClosedError,
    BodyTooLargeError,
    DeadlineExceededError,
    DrainingError,
    ImageError,
    MalformedUploadError,
    NoDefaultError,
    QueueFullError,
    RunFailedError,
    SlowUploadError,
    TooManyImagesError,
    TooManyPixelsError,
    UnauthorizedError,
    UnknownModelError,
    UnreadableImageError,
    UnsupportedFormatError,
    UnsupportedTypeError,
    UploadsFullError,
    VersionRefusedError,
    WrongTaskError,
)

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:quatserve:problem:"
CLIENT_GONE_STATUS = 499  # never sent: for logs and metrics
RETRY_AFTER_DRAINING_S = 5.0


@dataclass(frozen=True, slots=True)
class Kind:
    status: int
    slug: str
    title: str

    @property
    def type(self) -> str:
        return TYPE_PREFIX + self.slug


INTERNAL = Kind(500, "internal", "Something went wrong in the service")
NOT_FOUND = Kind(404, "not-found", "There is nothing at this path")
METHOD_NOT_ALLOWED = Kind(405, "method-not-allowed", "This path does not take this method")
TOO_MANY_CONNECTIONS = Kind(503, "too-many-connections", "Too many connections are open")
HEADERS_TOO_LARGE = Kind(431, "headers-too-large", "The head of the request is too large")
MALFORMED_REQUEST = Kind(400, "malformed-request", "The request is not well-formed HTTP")

KINDS: dict[type[Exception], Kind] = {
    UnreadableImageError: Kind(400, "unreadable-image", "The image cannot be read"),
    MalformedUploadError: Kind(400, "malformed-upload", "The body is not what its content type says"),
    UnauthorizedError: Kind(401, "unauthorized", "A valid API key is needed"),
    UnknownModelError: Kind(404, "unknown-model", "No such model is served"),
    SlowUploadError: Kind(408, "slow-upload", "The body did not arrive in time"),
    VersionRefusedError: Kind(409, "version-refused", "The version on disk cannot be served"),
    BodyTooLargeError: Kind(413, "body-too-large", "The body has too many bytes"),
    TooManyPixelsError: Kind(413, "too-many-pixels", "The image has too many pixels"),
    TooManyImagesError: Kind(413, "too-many-images", "The request has too many images"),
    UnsupportedTypeError: Kind(415, "unsupported-type", "The content type is not supported"),
    UnsupportedFormatError: Kind(415, "unsupported-format", "The image format is not supported"),
    BadParameterError: Kind(422, "bad-parameter", "A parameter is not valid"),
    WrongTaskError: Kind(422, "wrong-task", "The model does something else"),
    NoDefaultError: Kind(422, "no-default-model", "A model has to be named"),
    RunFailedError: Kind(500, "model-failure", "The model failed"),
    QueueFullError: Kind(503, "queue-full", "The service is busy"),
    UploadsFullError: Kind(503, "uploads-full", "The service is busy"),
    DrainingError: Kind(503, "draining", "The service is shutting down"),
    BatcherClosedError: Kind(503, "model-closed", "The model is being replaced"),
    DeadlineExceededError: Kind(504, "deadline", "The answer did not come in time"),
}
ALL_KINDS = (
    *KINDS.values(),
    INTERNAL,
    NOT_FOUND,
    METHOD_NOT_ALLOWED,
    TOO_MANY_CONNECTIONS,
    HEADERS_TOO_LARGE,
    MALFORMED_REQUEST,
)
REJECTIONS = frozenset({401, 408, 413, 431, 503, 504})  # counted by reason: for load, size, time or key


def kind_of(error: Exception) -> Kind:
    return KINDS.get(type(error), INTERNAL)


def document(kind: Kind, detail: str, request_id: str, **members: Any) -> dict[str, Any]:
    return {
        "type": kind.type,
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "request_id": request_id,
        **members,
    }


def _headers_of(error: Exception, kind: Kind) -> dict[str, str]:
    if kind.status == 401:
        return {"www-authenticate": "Bearer"}
    if kind.status == 503:
        wait_s = getattr(
            error, "retry_after_s", RETRY_AFTER_DRAINING_S if isinstance(error, DrainingError) else 1.0
        )
        return {"retry-after": str(max(1, math.ceil(wait_s)))}
    return {}


def response_of(error: Exception, request_id: str, path: str = "") -> Response:
    """The document of an error. What went wrong inside stays inside: it is logged, not sent."""
    kind = kind_of(error)
    detail = str(error) if kind.status != 500 else "The fault has been logged under this request id."
    members: dict[str, Any] = {}
    if isinstance(error, ImageError) and error.index is not None:
        detail, members = f"image {error.index}: {detail}", {"index": error.index}
    if path.startswith("/v2"):
        members["error"] = detail  # where clients of the Open Inference Protocol look
    return response_for(kind, detail, request_id, _headers_of(error, kind), **members)


def response_for(
    kind: Kind, detail: str, request_id: str, headers: dict[str, str], **members: Any
) -> Response:
    body = orjson.dumps(document(kind, detail, request_id, **members))
    return Response(body, kind.status, headers, MEDIA_TYPE)


def add_problem_handlers(api: FastAPI) -> None:
    """Make FastAPI answer every error with a problem document, its own errors included."""

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kinds = {404: NOT_FOUND, 405: METHOD_NOT_ALLOWED}
        kind = kinds.get(error.status_code, Kind(error.status_code, "http", str(error.detail)))
        return response_for(kind, str(error.detail), request.state.request_id, dict(error.headers or {}))

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        fault = error.errors()[0]
        name = ".".join(map(str, fault["loc"]))
        return response_of(BadParameterError(f"{name}: {fault['msg']}"), request.state.request_id)

    async def any_other(request: Request, error: Exception) -> Response:
        """Starlette raises the error again after this answer, and RequestMiddleware logs and counts it."""
        return response_of(error, request.state.request_id, request.url.path)

    api.add_exception_handler(HTTPException, http_error)
    api.add_exception_handler(RequestValidationError, invalid)
    api.add_exception_handler(Exception, any_other)

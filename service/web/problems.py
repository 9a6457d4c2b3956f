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
URN_PREFIX = "urn:quatserve:problem:"
CLIENT_GONE_STATUS = 499  # for logs and metrics; never sent
RETRY_AFTER_DRAINING_S = 5.0


@dataclass(frozen=True, slots=True)
class ProblemType:
    status: int
    slug: str
    title: str

    @property
    def urn(self) -> str:
        return URN_PREFIX + self.slug


INTERNAL = ProblemType(500, "internal", "Internal error")
NOT_FOUND = ProblemType(404, "not-found", "There is nothing at this path")
METHOD_NOT_ALLOWED = ProblemType(405, "method-not-allowed", "This path does not take this method")
TOO_MANY_CONNECTIONS = ProblemType(503, "too-many-connections", "Too many connections are open")
HEADERS_TOO_LARGE = ProblemType(431, "headers-too-large", "The head of the request is too large")
MALFORMED_REQUEST = ProblemType(400, "malformed-request", "The request is not well-formed HTTP")

PROBLEM_TYPES: dict[type[Exception], ProblemType] = {
    UnreadableImageError: ProblemType(400, "unreadable-image", "The image cannot be read"),
    MalformedUploadError: ProblemType(400, "malformed-upload", "The body is not what its content type says"),
    UnauthorizedError: ProblemType(401, "unauthorized", "A valid API key is needed"),
    UnknownModelError: ProblemType(404, "unknown-model", "No such model is served"),
    SlowUploadError: ProblemType(408, "slow-upload", "The body did not arrive in time"),
    VersionRefusedError: ProblemType(409, "version-refused", "The version on disk cannot be served"),
    BodyTooLargeError: ProblemType(413, "body-too-large", "The body has too many bytes"),
    TooManyPixelsError: ProblemType(413, "too-many-pixels", "The image has too many pixels"),
    TooManyImagesError: ProblemType(413, "too-many-images", "The request has too many images"),
    UnsupportedTypeError: ProblemType(415, "unsupported-type", "The content type is not supported"),
    UnsupportedFormatError: ProblemType(415, "unsupported-format", "The image format is not supported"),
    BadParameterError: ProblemType(422, "bad-parameter", "A parameter is not valid"),
    WrongTaskError: ProblemType(422, "wrong-task", "The model does something else"),
    NoDefaultError: ProblemType(422, "no-default-model", "The request must name a model"),
    RunFailedError: ProblemType(500, "model-failure", "The model failed"),
    QueueFullError: ProblemType(503, "queue-full", "The service is busy"),
    UploadsFullError: ProblemType(503, "uploads-full", "The service is busy"),
    DrainingError: ProblemType(503, "draining", "The service is shutting down"),
    BatcherClosedError: ProblemType(503, "model-closed", "The model is being replaced"),
    MemoryError: ProblemType(503, "out-of-memory", "The service is short of memory"),
    DeadlineExceededError: ProblemType(504, "deadline", "The response was not ready in time"),
}
ALL_PROBLEM_TYPES = (
    *PROBLEM_TYPES.values(),
    INTERNAL,
    NOT_FOUND,
    METHOD_NOT_ALLOWED,
    TOO_MANY_CONNECTIONS,
    HEADERS_TOO_LARGE,
    MALFORMED_REQUEST,
)
REJECTIONS = frozenset({401, 408, 413, 431, 503, 504})  # counted by reason: load, size, time or key


def problem_type_of(error: Exception) -> ProblemType:
    return next((PROBLEM_TYPES[cls] for cls in type(error).__mro__ if cls in PROBLEM_TYPES), INTERNAL)


def document(kind: ProblemType, detail: str, request_id: str, **members: Any) -> dict[str, Any]:
    return {
        "type": kind.urn,
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "request_id": request_id,
        **members,
    }


def _headers_of(error: Exception, kind: ProblemType) -> dict[str, str]:
    if kind.status == 401:
        return {"www-authenticate": "Bearer"}
    if kind.status == 503:
        wait_s = getattr(
            error, "retry_after_s", RETRY_AFTER_DRAINING_S if isinstance(error, DrainingError) else 1.0
        )
        return {"retry-after": str(max(1, math.ceil(wait_s)))}
    return {}


def response_of(error: Exception, request_id: str, path: str = "") -> Response:
    """The problem document of an error. The reason of an internal error is logged, not sent."""
    kind = problem_type_of(error)
    detail = (
        (str(error) or kind.title)
        if kind.status != 500
        else "The reason has been logged under this request id."
    )
    members: dict[str, Any] = {}
    if isinstance(error, ImageError) and error.index is not None:
        detail, members = f"image {error.index}: {detail}", {"index": error.index}
    if path.startswith("/v2"):
        members["error"] = detail  # where clients of the Open Inference Protocol look
    return response_for(kind, detail, request_id, _headers_of(error, kind), **members)


def response_for(
    kind: ProblemType, detail: str, request_id: str, headers: dict[str, str], **members: Any
) -> Response:
    body = orjson.dumps(document(kind, detail, request_id, **members))
    return Response(body, kind.status, headers, MEDIA_TYPE)


def add_problem_handlers(api: FastAPI) -> None:
    """Make FastAPI answer every error with a problem document, its own errors included."""

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kinds = {404: NOT_FOUND, 405: METHOD_NOT_ALLOWED}
        kind = kinds.get(error.status_code, ProblemType(error.status_code, "http", str(error.detail)))
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

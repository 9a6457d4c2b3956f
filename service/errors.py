"""Every exception of the service. It imports nothing of ours, so any module may raise and catch them.

Exception
├── SettingsError              a setting, or a combination of settings, cannot be used
├── AddressError               the host and port cannot be listened on
├── ArtifactError              a model version must not be served: missing, damaged or of another schema
├── NothingToServeError        the models directory is unreadable or empty
├── DeviceUnavailableError     the device in the settings is not there
│   └── NoGpuError             and no other GPU either
├── DeviceFailedError          a call into CUDA failed in a run
├── BadOutputError             a network returned a wrong shape or type, or a number that is not finite
├── ImageError                 the bytes of one image
│   ├── UnreadableImageError
│   ├── UnsupportedFormatError
│   └── TooManyPixelsError
├── the request                MalformedUploadError, UnauthorizedError, UnknownModelError, SlowUploadError,
│                              VersionRefusedError, BodyTooLargeError, TooManyImagesError,
│                              UnsupportedTypeError, BadParameterError, WrongTaskError, NoDefaultError
└── the service                RunFailedError, QueueFullError, UploadsFullError, DrainingError,
                               BatcherClosedError, DeadlineExceededError, ClientGoneError

`web/problems.py` maps those that a client can see to an HTTP status.
"""

# --- the start ---


class SettingsError(Exception):
    """A setting cannot be used; the message names it, its value and what is allowed."""


class AddressError(Exception):
    """The host and port cannot be listened on; the message says why and what to do."""


class ArtifactError(Exception):
    """An artifact must not be served: it is missing, damaged, or of another schema."""


class NothingToServeError(Exception):
    """The models directory cannot be read, or holds nothing that can be served."""


class DeviceUnavailableError(Exception):
    """The device in the settings is not there; the message says what is missing."""


class NoGpuError(DeviceUnavailableError):
    """This machine, or this container, has no GPU at all."""


# --- an image ---


class ImageError(Exception):
    """One image cannot be used. `index` is its place in the request, set where several are decoded."""

    index: int | None = None


class UnreadableImageError(ImageError):
    """Not an image, or a damaged one."""


class UnsupportedFormatError(ImageError):
    """An image, but of a format that is not served."""


class TooManyPixelsError(ImageError):
    """Larger than the bound, found before decoding."""


# --- a request ---


class MalformedUploadError(Exception):
    """The body is not what its content type says."""


class UnauthorizedError(Exception):
    """The request has no API key, or an unknown one."""


class SlowUploadError(Exception):
    """The body did not arrive in time."""


class BodyTooLargeError(Exception):
    """The body has more bytes than the bound."""


class TooManyImagesError(Exception):
    """The request has more images, or parts, than one request may carry."""


class UnsupportedTypeError(Exception):
    """The content type is neither a form nor an image."""


class BadParameterError(Exception):
    """A parameter is unknown or out of bounds."""


class UnknownModelError(Exception):
    """No model of that name is served."""


class WrongTaskError(Exception):
    """The model in the request does another task."""


class NoDefaultError(Exception):
    """Several models do the task, and no setting chooses one."""


class VersionRefusedError(Exception):
    """The highest version on disk cannot be served, or the directory cannot be read."""


# --- the service's own state ---


class QueueFullError(Exception):
    """The queue has no room, or no run will start in time; `retry_after_s` says when to come back."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"the queue is full; retry in {retry_after_s:.1f} s")
        self.retry_after_s = retry_after_s


class UploadsFullError(Exception):
    """The request bodies in memory already fill the bytes reserved for them."""


class DrainingError(Exception):
    """The service is shutting down and accepts no new work."""


class BatcherClosedError(Exception):
    """The batcher accepts no more work."""


class RunFailedError(Exception):
    """The model raised, or returned something that is not one row per image."""


class BadOutputError(Exception):
    """The network returned a wrong shape or type, or numbers that are not finite."""


class DeviceFailedError(Exception):
    """CUDA failed in a run, possibly for good; the message has the cause and the remedy."""


class DeadlineExceededError(Exception):
    """The response was not ready in time."""


class ClientGoneError(Exception):
    """The client disconnected; nobody reads the response."""

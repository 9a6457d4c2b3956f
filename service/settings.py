"""Every setting of the service: name, type, default, bounds and meaning, each stated once."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from quatserve.service.artifact import Task
from quatserve.service.errors import SettingsError

MEBIBYTE = 1 << 20


class Device(StrEnum):
    AUTO = "auto"
    CUDA = "cuda"
    CPU = "cpu"


class PrecisionChoice(StrEnum):
    AUTO = "auto"
    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"


def _split_keys(value: object) -> object:
    if not isinstance(value, str):
        return value
    keys = tuple(part.strip() for part in value.split(",") if part.strip())
    if value and not keys:  # a list without a key must not open the service to everybody
        raise ValueError("holds no key")
    return keys


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Keys = Annotated[tuple[SecretStr, ...], BeforeValidator(_split_keys)]


class Settings(BaseModel):
    """Validated once at the start, and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for every interface")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 lets the system choose")
    models_dir: Path = Field(Path("models"), description="directory of NAME/VERSION artifacts")
    device: Device = Field(
        Device.CPU, description="cpu, cuda (does not start without a GPU), or auto (a GPU if there is one)"
    )
    precision: PrecisionChoice = Field(
        PrecisionChoice.AUTO,
        description="fp32, fp16, int8, or auto (int8 on a CPU, fp16 on a GPU if the model has it, else fp32)",
    )
    threads: int = Field(
        0, ge=0, le=1024, description="threads that compute; 0 uses every CPU that the process may use"
    )
    default_classifier: str = Field("", description="model of /classify if several could serve it")
    default_segmenter: str = Field("", description="model of /segment if several could serve it")
    max_batch: int = Field(32, ge=1, le=1024, description="maximum images per run")
    max_batch_s: Seconds = Field(0.25, description="maximum duration of a run; it limits the batch size")
    queue_images: Count = Field(64, description="maximum images waiting per model; beyond it 503")
    queue_timeout_s: Seconds = Field(2.0, description="maximum wait for a run to start; beyond it 503")
    deadline_s: Seconds = Field(
        10.0, description="maximum time from the end of the upload to the response; beyond it 504"
    )
    stuck_after_s: Seconds = Field(
        5.0,
        description="if a terminated run has not returned after this time, the process exits with code 70",
    )
    max_body_bytes: Count = Field(16 * MEBIBYTE, description="maximum size of a request body; beyond it 413")
    max_image_pixels: Count = Field(1 << 25, description="maximum width x height of an image; beyond it 413")
    max_images: Count = Field(16, description="maximum images per request; beyond it 413")
    upload_timeout_s: Seconds = Field(
        20.0, description="maximum time for a request body to arrive; beyond it 408"
    )
    upload_memory_bytes: Count = Field(
        256 * MEBIBYTE, description="request bodies held in memory, in total; beyond it 503"
    )
    max_connections: Count = Field(
        1024, description="maximum open connections; beyond it 503, and the connection is closed"
    )
    header_timeout_s: Seconds = Field(10.0, description="maximum time for the head of a request to arrive")
    keep_alive_s: Seconds = Field(15.0, description="how long an idle connection is kept open")
    answer_timeout_s: Seconds = Field(
        60.0, description="maximum time for a client to read its response; beyond it the connection is closed"
    )
    answer_memory_bytes: Count = Field(
        256 * MEBIBYTE,
        description="responses that clients have not read yet, in total; beyond it the oldest is cut off",
    )
    drain_timeout_s: Seconds = Field(20.0, description="on SIGTERM, maximum time to finish accepted work")
    drain_notice_s: float = Field(
        0.0,
        ge=0,
        description="on SIGTERM, minimum time to stay up and refuse work, so that load balancers notice",
    )
    gpu_memory_bytes: int = Field(
        0,
        ge=0,
        description="maximum memory arena of onnxruntime on a GPU per batch size of a model; 0 for no limit",
    )
    cuda_graphs: bool = Field(False, description="replay a captured CUDA graph for each batch size on a GPU")
    api_keys: Keys = Field(
        (),
        description="comma-separated API keys; empty serves everybody. Prefer the environment or the file",
    )
    api_keys_file: Path | None = Field(
        None, description="file with one API key per line, such as a mounted secret"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="minimum log level: debug, info, warning or error"
    )
    log_format: Literal["json", "text"] = Field("json", description="json (one document per line) or text")
    access_log: bool = Field(True, description="log a line for every request")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_images > self.queue_images:
            raise ValueError(
                f"max_images ({self.max_images}) cannot exceed queue_images ({self.queue_images})"
            )
        if self.max_body_bytes > self.upload_memory_bytes:
            raise ValueError(
                f"max_body_bytes ({self.max_body_bytes}) cannot exceed "
                f"upload_memory_bytes ({self.upload_memory_bytes})"
            )
        if self.drain_notice_s >= self.drain_timeout_s:
            raise ValueError(
                f"drain_notice_s ({self.drain_notice_s:g}) must be less than drain_timeout_s "
                f"({self.drain_timeout_s:g}), which covers the notice"
            )
        return self

    def default_model(self, task: Task) -> str:
        """The name chosen for a task; empty for the only model of the task."""
        return self.default_classifier if task is Task.CLASSIFICATION else self.default_segmenter

    def keys(self) -> tuple[str, ...]:
        """All API keys, from the list and from the file."""
        listed = tuple(key.get_secret_value() for key in self.api_keys)
        keys = listed + (() if self.api_keys_file is None else self._keys_of(self.api_keys_file))
        if not all(key.isascii() and key.isprintable() for key in keys):
            raise SettingsError("api_keys: a key must consist of printable ASCII characters, as in a header")
        return keys

    def _keys_of(self, file: Path) -> tuple[str, ...]:
        try:
            lines = file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise SettingsError(f"api_keys_file: {file} cannot be read ({reason})") from error
        found = tuple(line.strip() for line in lines if line.strip())
        if not found:  # an empty file must not open the service to everybody
            raise SettingsError(f"api_keys_file: {file} holds no key")
        return found

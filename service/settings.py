"""Every setting of the service: one definition for the environment, the flags, the help and the table."""

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from quatserve.service.artifact import Task
from quatserve.service.errors import SettingsError

ENVIRONMENT_PREFIX = "QUATSERVE_"
USAGE = """
  quatserve serve [flags]                                    serve over HTTP
  quatserve classify PATH... --out results.csv         say what is in each image
  quatserve segment PATH... --out DIR                  draw where the road is"""
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


def _split(value: object) -> object:
    if not isinstance(value, str):
        return value
    keys = tuple(part.strip() for part in value.split(",") if part.strip())
    if value and not keys:  # what holds no key must not open the service to everybody
        raise ValueError("it holds no key")
    return keys


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Keys = Annotated[tuple[SecretStr, ...], BeforeValidator(_split)]


class Settings(BaseModel):
    """Validated once, at the start; frozen afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for every interface")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 lets the system choose")
    models_dir: Path = Field(Path("models"), description="directory of NAME/VERSION artifacts")
    device: Device = Field(Device.CPU, description="cpu, cuda (refuses to start elsewhere), or auto")
    precision: PrecisionChoice = Field(
        PrecisionChoice.AUTO,
        description="auto (int8 on a CPU where the model has it, else fp32), fp32, fp16 or int8",
    )
    threads: int = Field(
        0, ge=0, le=1024, description="threads to compute with; 0 takes all CPUs of its affinity and quota"
    )
    default_classifier: str = Field("", description="model of /classify when several could serve it")
    default_segmenter: str = Field("", description="model of /segment when several could serve it")
    max_batch: int = Field(32, ge=1, le=1024, description="most images in one run")
    max_batch_s: Seconds = Field(0.25, description="a batch is kept small enough to run within this")
    queue_images: Count = Field(64, description="images that may wait for each model; beyond it 503")
    queue_timeout_s: Seconds = Field(2.0, description="longest wait for a run to begin; beyond it 503")
    deadline_s: Seconds = Field(10.0, description="from the end of the upload to the answer; beyond it 504")
    stuck_after_s: Seconds = Field(
        5.0, description="if a run told to stop still goes on after this, the process exits with code 70"
    )
    max_body_bytes: Count = Field(16 * MEBIBYTE, description="largest request body; beyond it 413")
    max_image_pixels: Count = Field(1 << 25, description="largest image, width x height; beyond it 413")
    max_images: Count = Field(16, description="most images in one request; beyond it 413")
    upload_timeout_s: Seconds = Field(20.0, description="longest time for a body to arrive; beyond it 408")
    upload_memory_bytes: Count = Field(
        256 * MEBIBYTE, description="bodies held in memory at once, all requests together; beyond it 503"
    )
    max_connections: Count = Field(1024, description="open connections; beyond it 503 and closed")
    header_timeout_s: Seconds = Field(10.0, description="longest time for the head of a request to arrive")
    keep_alive_s: Seconds = Field(15.0, description="how long an idle connection is kept")
    answer_timeout_s: Seconds = Field(
        60.0, description="longest time for a client to take its answer; beyond it the connection is cut"
    )
    answer_memory_bytes: Count = Field(
        256 * MEBIBYTE,
        description="answers their clients have not taken yet, all together; beyond it the oldest is cut",
    )
    drain_timeout_s: Seconds = Field(20.0, description="longest time to finish accepted work on SIGTERM")
    drain_notice_s: float = Field(
        0.0, ge=0, description="on SIGTERM, stay up refusing work at least this long for balancers to notice"
    )
    gpu_memory_bytes: int = Field(0, ge=0, description="limit of GPU memory per model; 0 for none")
    api_keys: Keys = Field(
        (), description="comma-separated keys; empty serves everybody. Prefer the environment or the file"
    )
    api_keys_file: Path | None = Field(None, description="file with one API key a line, such as a secret")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level logged")
    log_format: Literal["json", "text"] = Field("json", description="json, one document a line, or text")
    access_log: bool = Field(True, description="log a line for every request")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_images > self.queue_images:
            raise ValueError(
                f"max_images ({self.max_images}) cannot exceed queue_images ({self.queue_images})"
            )
        if self.max_body_bytes > self.upload_memory_bytes:
            raise ValueError("max_body_bytes cannot exceed upload_memory_bytes: such a body would never fit")
        if self.drain_notice_s >= self.drain_timeout_s:
            raise ValueError(
                f"drain_notice_s ({self.drain_notice_s:g}) must be less than drain_timeout_s "
                f"({self.drain_timeout_s:g}), which holds for all of the drain"
            )
        return self

    def default_model(self, task: Task) -> str:
        """The name chosen for a task; empty where the only model of the task is meant."""
        return self.default_classifier if task is Task.CLASSIFICATION else self.default_segmenter

    def keys(self) -> tuple[str, ...]:
        """All API keys, from the list and from the file."""
        listed = tuple(key.get_secret_value() for key in self.api_keys)
        keys = listed + (() if self.api_keys_file is None else self._keys_of(self.api_keys_file))
        if not all(key.isascii() and key.isprintable() for key in keys):
            raise SettingsError("api_keys: a key must be of printable ASCII characters, as headers are")
        return keys

    def _keys_of(self, file: Path) -> tuple[str, ...]:
        try:
            lines = file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise SettingsError(f"api_keys_file: {file} cannot be read ({reason})") from error
        found = tuple(line.strip() for line in lines if line.strip())
        if not found:  # an empty secret must not open the service to everybody
            raise SettingsError(f"api_keys_file: {file} holds no key")
        return found


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def default_of(name: str) -> str:
    default = Settings.model_fields[name].default
    return "" if default is None or default == () else str(default)


def table() -> str:
    """The documented table of settings, in Markdown."""
    rows = ["| environment | flag | default | what |", "|---|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = f"`{default_of(name)}`" if default_of(name) else ""
        rows.append(f"| `{variable_of(name)}` | `{flag_of(name)}` | {default} | {field.description} |")
    return "\n".join(rows) + "\n"


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings given as variables; a misspelt one is an error, not a silence."""
    found = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name not in Settings.model_fields:
            raise SettingsError(f"{variable}: no such setting; see quatserve serve --help")
        found[name] = value
    return found


class CommandParser(argparse.ArgumentParser):
    """Tells what is wrong, a shortened flag included, in one line, like every other bad setting."""

    def __init__(self, **texts: Any) -> None:
        super().__init__(allow_abbrev=False, **texts)

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; see {self.prog} --help")


def add_flags(parser: argparse.ArgumentParser, names: Iterable[str] = Settings.model_fields) -> None:
    """One flag per setting; absent flags leave no trace, so that the environment shows through."""
    for name in names:
        field = Settings.model_fields[name]
        shown = f"{field.description} (default: {default_of(name) or 'none'}; {variable_of(name)})"
        parser.add_argument(
            flag_of(name),
            dest=name,
            default=argparse.SUPPRESS,
            metavar="VALUE",
            help=shown.replace("%", "%%"),
        )


def build(values: Mapping[str, Any]) -> Settings:
    """Settings from plain values, or one line that says which value is wrong and why."""
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_first_fault(error)) from error
    settings.keys()
    return settings


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    message = fault["msg"].removeprefix("Value error, ")
    if not fault["loc"]:
        return message
    name = str(fault["loc"][0])
    given = "" if name == "api_keys" else f" is {fault['input']!r}:"
    return f"{name}{given} {message} ({variable_of(name)}, {flag_of(name)})"


def parse(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Settings:
    """Settings from flags over environment over defaults."""
    parser = CommandParser(
        prog="quatserve serve",
        usage=USAGE,
        description="Serve the folded networks of a models directory over HTTP, or work through files "
        "without a server. Each command has a --help of its own; the flags below are those of serving.",
        epilog="Every flag is an environment variable too; a flag wins. SIGHUP rescans the models directory.",
    )
    parser.add_argument("--debug", action="store_true", help="show a traceback when the service cannot start")
    add_flags(parser)
    flags = vars(parser.parse_args(arguments))
    del flags["debug"]  # whoever calls looks for it: it holds where parsing fails, too
    return build(from_environment(environment) | flags)

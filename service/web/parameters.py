"""The query parameters of the inference routes: one pydantic model per route, and the rules of both."""

from enum import StrEnum
from typing import Annotated, Any, Self
from urllib.parse import parse_qsl

from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic.fields import FieldInfo
from starlette.requests import Request

from quatserve.service.errors import BadParameterError
from quatserve.service.imaging.render import DEFAULT_THRESHOLD, Output

MAX_PARAMETERS = 16  # in one query string
MAX_SHOWN = 40  # characters of a client's value in an error message
MAX_TOP_K = 1000
NUMBER_NAMES: dict[Any, str] = {int: "a whole number", float: "a number"}
ModelName = Annotated[
    str | None, Field(description="name of a model; the default model of the task otherwise")
]


class RequestParameters(BaseModel):
    """Refuses unknown names, and raises BadParameterError instead of pydantic's own error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, values: object, validate: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return validate(values)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            raise BadParameterError(cls._reason(str(fault["loc"][0]), fault["input"])) from None

    @classmethod
    def _reason(cls, name: str, value: object) -> str:
        field = cls.model_fields.get(name)
        if field is None:
            known = ", ".join(sorted(cls.model_fields))
            return f"{name[:MAX_SHOWN]!r} is not a parameter; known are {known}"
        return f"{name} is {str(value)[:MAX_SHOWN]!r}; it must be {_allowed(field)}"


class ClassifyParameters(RequestParameters):
    model: ModelName = None
    top_k: int = Field(
        5, ge=1, le=MAX_TOP_K, description="number of classes in the answer, most probable first"
    )


class SegmentParameters(RequestParameters):
    model: ModelName = None
    output: Output = Field(
        Output.MASK,
        description="mask (0 or 255), heatmap (255 p), or overlay (the photo with the road tinted)",
    )
    threshold: float = Field(
        DEFAULT_THRESHOLD, ge=0, le=1, description="a pixel is road from this probability on"
    )


def _allowed(field: FieldInfo) -> str:
    """The values that the declaration of a field admits, in words."""
    if isinstance(field.annotation, type) and issubclass(field.annotation, StrEnum):
        return f"one of {', '.join(field.annotation)}"
    low = next(limit.ge for limit in field.metadata if isinstance(limit, Ge))
    high = next(limit.le for limit in field.metadata if isinstance(limit, Le))
    return f"{NUMBER_NAMES[field.annotation]} from {low} to {high}"


async def read_query(request: Request) -> dict[str, str]:
    """The query string as a dictionary. FastAPI alone would take the last of two values, and any number."""
    query: bytes = request.scope["query_string"]
    if not query:
        return {}
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_PARAMETERS, errors="strict"
        )
    except ValueError as error:
        raise BadParameterError(
            "the query string cannot be read; it must be percent-encoded UTF-8, "
            f"with at most {MAX_PARAMETERS} parameters"
        ) from error
    found = dict(pairs)
    if len(found) != len(pairs):
        repeated = next(name for index, (name, _) in enumerate(pairs) if name in dict(pairs[:index]))
        raise BadParameterError(f"{repeated[:MAX_SHOWN]!r} is given twice; give each parameter once")
    return found

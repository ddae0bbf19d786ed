"""What all sections of an experiment file share: their base, their sizes in bytes, and how they report problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from fedquilt_common.rejections import Problem


def validation_error(problems: Sequence[Problem]) -> ValidationError:
    """Return a pydantic error that holds each problem with its path."""
    details: list[InitErrorDetails] = []
    for problem in problems:
        kind = PydanticCustomError("contradiction", "{why}", {"why": problem.why})
        details.append({"type": kind, "loc": tuple(problem.path.split(".")), "input": problem.value})
    return ValidationError.from_exception_data("Experiment", details)


def _as_list(value: Any) -> Any:
    return value if value is None or isinstance(value, list | tuple) else [value]


Many: Final = BeforeValidator(_as_list)
"""Accepts a single entry for a list of one."""


MIB: Final = 1 << 20


def _check_size(value: Any, parse: ValidatorFunctionWrapHandler) -> Any:
    """Reject what ByteSize would accept by mistake: True and 1.9 would both become 1. Explain what it rejects."""
    try:
        if not isinstance(value, bool | float):
            return parse(value)
    except ValidationError:
        pass
    raise PydanticCustomError("size", "must be a whole number of bytes or text such as 512MiB")


Size = Annotated[ByteSize, WrapValidator(_check_size)]


def _check_memory(size: ByteSize) -> ByteSize:
    if size < MIB:
        raise PydanticCustomError("memory", "must be at least 1MiB; a number alone is in bytes, so write 512MiB")
    return size


MemorySize = Annotated[Size, AfterValidator(_check_memory), Field(json_schema_extra={"minimum": MIB})]
"""Memory of a board, or for training: less than 1 MiB is a number without its unit."""
MOST: Final = 1_000_000
"""The largest number of rounds, clients, epochs, samples and other things that an experiment counts."""
Count = Annotated[int, Field(ge=1, le=MOST)]


def _check_whole(gpus: float) -> float:
    if gpus > 1 and not gpus.is_integer():
        why = "above 1 it must be a whole number, because only one GPU can be shared; round it up"
        raise PydanticCustomError("contradiction", "{why}", {"why": why})
    return gpus


Gpus = Annotated[float, Field(ge=0.0001), AfterValidator(_check_whole)]


class Section(BaseModel):
    """Base of the sections: immutable, strict types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

"""What every part of a record is: frozen, and read strictly."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

Ms = Annotated[float, Meta(gt=0, le=1e12)]  # a time that was measured
Positive = Annotated[float, Meta(gt=0, le=1e24)]
Share = Annotated[float, Meta(ge=0, le=1)]
Us = Annotated[float, Meta(ge=0, le=1e15)]  # a part of a step, which may be nothing
Count = Annotated[int, Meta(ge=0, le=2**53)]
Size = Annotated[int, Meta(ge=1, le=2**53)]
Numbers = Annotated[list[Ms], Meta(min_length=1)]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers are finite: what is unknown is None, and a number that is not finite is written as that."""


P = TypeVar("P", bound=Part)


def replaced(part: P, **changes: object) -> P:
    """A copy with these fields. Raises TypeError for an unknown field or a value of another type."""
    types = {field.name: field.type for field in msgspec.structs.fields(part)}
    for name, value in changes.items():
        try:
            msgspec.convert(value, types[name])
        except (KeyError, msgspec.ValidationError) as error:
            raise TypeError(f"{type(part).__name__}.{name}: {error}") from error
    return msgspec.structs.replace(part, **changes)

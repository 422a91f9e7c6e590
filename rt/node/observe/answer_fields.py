"""Fields of a node's answer, each checked for its type as it is read."""

from typing import Any, Final, TypeVar, cast

from rt.position import Position
from rt.text import printable

Field = TypeVar("Field")
NUMBER_END: Final = 1 << 63


def get(fields: dict[str, Any], name: str, kind: type[Field]) -> Field:
    """Return a field, or an empty value if it is missing, as an older node's answer may lack it.

    Raises:
        TypeError: The field has another type.
        ValueError: The number is beyond any that `rt` produces.
    """
    value = fields.get(name)
    return kind() if value is None else checked(value, kind, name)


def seconds(fields: dict[str, Any], name: str) -> float:
    """Return a numeric field as a float; raises as `get`."""
    value = fields.get(name)
    return float(get(fields, name, int)) if isinstance(value, int) else get(fields, name, float)


def position(fields: dict[str, Any], name: str) -> Position:
    """Return a field that is a position; raises as `get`."""
    return Position.parse(get(fields, name, str) or "0.0.0")


def objects(fields: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return a field that is a list of objects; raises as `get`."""
    return [checked(each, dict) for each in get(fields, name, list)]


def checked(value: Any, kind: type[Field], name: str = "an entry") -> Field:
    """Return a value of type `kind`, with control characters in text escaped; raises as `get`."""
    if not isinstance(value, kind) or type(value) is bool:
        raise TypeError(f"{name} is of type {type(value).__name__}")
    if isinstance(value, int | float) and not 0 <= value < NUMBER_END:
        raise ValueError(f"{name} is out of range")
    return cast("Field", printable(value)) if isinstance(value, str) else value

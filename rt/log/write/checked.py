"""Checked: validates a caller's arguments, and converts payloads, keys and times."""

import threading
from array import array
from collections.abc import Iterable
from typing import Final

from rt.errors import Misuse

_SHOWN_LENGTH: Final = 40  # characters of a wrong value that an error quotes
Bytes = bytes | bytearray | memoryview


def as_bytes(value: object, noun: str = "a message") -> bytes:
    """Return a payload or key as bytes; `Misuse` if `value` is neither bytes nor a buffer."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise Misuse(f"{noun} is bytes, not {type(value).__name__}; encode it first")


def checked_seconds(value: object, noun: str) -> float:
    """Return a duration of 0 or more; otherwise `Misuse`, naming `noun`.

    A value longer than the system can wait, such as infinity, becomes the longest wait.

    >>> checked_seconds(1.5, "timeout_s")
    1.5
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise Misuse(f"{noun} is {repr(value)[:_SHOWN_LENGTH]}; use seconds, 0 or more")
    return float(min(value, threading.TIMEOUT_MAX))


def checked_count(value: object, noun: str, least: int) -> int:
    """Return an integer of `least` or more; otherwise `Misuse`, naming `noun`."""
    if type(value) is not int or value < least:
        raise Misuse(
            f"{noun} is {repr(value)[:_SHOWN_LENGTH]}; use a whole number, {least} or more"
        )
    return value


def demand_kind(noun: str, value: object, *kinds: type) -> None:
    """Raise `Misuse`, naming `noun`, if an argument is given and has none of these types.

    >>> demand_kind("timeout", None, int)
    """
    if value is not None and not isinstance(value, kinds):
        wanted = " or ".join(each.__name__ for each in kinds)
        raise Misuse(f"{noun} is a {wanted}, not {type(value).__name__}")


def checked_list(values: Iterable[Bytes], noun: str) -> list[bytes]:
    """Return payloads or keys as bytes; `Misuse`, naming `noun`, if one has another type."""
    taken = list(values)
    kinds = set(map(type, taken))
    if kinds <= {bytes}:
        return taken  # type: ignore[return-value]
    if strange := kinds - {bytes, bytearray, memoryview}:
        names = ", ".join(sorted(each.__name__ for each in strange))
        raise Misuse(f"each {noun} of publish_many is bytes, not {names}; encode it first")
    return list(map(bytes, taken))


def checked_times(times_ns: Iterable[int]) -> list[int]:
    """Return times as 64-bit integers; `Misuse` if one does not fit."""
    try:
        return array("q", times_ns).tolist()
    except (TypeError, OverflowError) as error:
        raise Misuse(f"a time is ns since the epoch, an integer of 64 bits: {error}") from None

"""Checked: what a caller publishes, as bytes and times."""

import threading
from array import array
from collections.abc import Iterable
from typing import Final

from rt.errors import Misuse

_SHOWN_LENGTH: Final = 40  # of a wrong value
Bytes = bytes | bytearray | memoryview


def as_bytes(value: object, noun: str = "a message") -> bytes:
    """Return a payload or key as bytes; `Misuse` if it is neither bytes nor a buffer of them."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise Misuse(f"{noun} is bytes, not {type(value).__name__}; encode it first")


def checked_seconds(value: object, noun: str) -> float:
    """Return a time that is 0 or more; `Misuse`, with the noun, if it is not.

    What is longer than the system can wait, such as infinity, is the longest that it can.

    >>> checked_seconds(1.5, "timeout_s")
    1.5
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise Misuse(f"{noun} is {repr(value)[:_SHOWN_LENGTH]}; use seconds, 0 or more")
    return float(min(value, threading.TIMEOUT_MAX))


def checked_count(value: object, noun: str, least: int) -> int:
    """Return a whole number that is large enough; `Misuse`, with the noun, if it is not."""
    if type(value) is not int or value < least:
        raise Misuse(
            f"{noun} is {repr(value)[:_SHOWN_LENGTH]}; use a whole number, {least} or more"
        )
    return value


def checked_list(values: Iterable[Bytes], noun: str) -> list[bytes]:
    """Return payloads or keys as bytes; `Misuse`, with the noun, if one is of another type."""
    taken = list(values)
    kinds = set(map(type, taken))
    if kinds <= {bytes}:
        return taken  # type: ignore[return-value]
    if strange := kinds - {bytes, bytearray, memoryview}:
        names = ", ".join(sorted(each.__name__ for each in strange))
        raise Misuse(f"each {noun} of publish_many is bytes, not {names}; encode it first")
    return list(map(bytes, taken))


def checked_times(times_ns: Iterable[int]) -> list[int]:
    """Return times as integers of 64 bits; `Misuse` if one is not."""
    try:
        return array("q", times_ns).tolist()
    except (TypeError, OverflowError) as error:
        raise Misuse(f"a time is ns since the epoch, an integer of 64 bits: {error}") from None

"""Checked: what a caller publishes, as bytes and times."""

from array import array
from collections.abc import Iterable

from rt.errors import Misuse

Bytes = bytes | bytearray | memoryview


def as_bytes(value: object) -> bytes:
    """Return a payload or key as bytes; `Misuse` if it is neither bytes nor a buffer of them."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise Misuse(f"a message is bytes, not {type(value).__name__}; encode it first")


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

"""Records: what a line of input says: a message, and perhaps its key and its time."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rt.errors import Misuse
from rt.names import shown

_TIME: Final = re.compile(r"(.+?[0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,]([0-9]{1,9}))?([^.,]*)")


@dataclass(frozen=True, slots=True)
class Form:
    """How lines are to be read.

    Args:
        ndjson: whether each line is a JSON object; else it is what it is.
        key_field: the field that holds the key; "" for no keys.
        time_field: the field that holds the publish time; "" for now.
    """

    ndjson: bool = False
    key_field: str = ""
    time_field: str = ""

    def __post_init__(self) -> None:
        if not self.ndjson and (self.key_field or self.time_field):
            raise Misuse("a key or time field needs JSON lines; give --format ndjson")


@dataclass(frozen=True, slots=True)
class Records:
    """Messages in order, as `Publisher.publish_many` takes them; a bad line ends them."""

    payloads: list[bytes]
    keys: list[bytes] | None
    times_ns: list[int] | None
    bad_line: int | None = None  # its place among the lines that were given, from 0
    reason: str = ""

    def cut(self, size: int) -> "list[Records]":
        """Return the same records in pieces of up to `size`."""
        return [self._piece(start, start + size) for start in range(0, len(self.payloads), size)]

    def _piece(self, start: int, end: int) -> "Records":
        keys, times = self.keys, self.times_ns
        return Records(
            self.payloads[start:end], keys and keys[start:end], times and times[start:end]
        )


def read_records(lines: list[bytes], form: Form, message_bytes_max: int) -> Records:
    """Read lines up to the first bad one."""
    if not form.ndjson:
        if max(map(len, lines), default=0) <= message_bytes_max:
            return Records(lines, None, None)
        bad = next(place for place, line in enumerate(lines) if len(line) > message_bytes_max)
        return Records(lines[:bad], None, None, bad, _too_long(len(lines[bad]), message_bytes_max))
    return _read_json(lines, form, message_bytes_max)


def _read_json(lines: Sequence[bytes], form: Form, message_bytes_max: int) -> Records:
    payloads: list[bytes] = []
    keys: list[bytes] | None = [] if form.key_field else None
    times: list[int] | None = [] if form.time_field else None
    for place, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            key, time_ns = _fields(line, form)
            if len(line) + len(key) > message_bytes_max:
                raise Misuse(_too_long(len(line) + len(key), message_bytes_max))
        except ValueError as error:
            return Records(payloads, keys, times, place, str(error))
        payloads.append(line)
        if keys is not None:
            keys.append(key)
        if times is not None:
            times.append(time_ns)
    return Records(payloads, keys, times)


def _fields(line: bytes, form: Form) -> tuple[bytes, int]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Misuse(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Misuse(f"a JSON {_noun(found)}, not an object")
    key = _key(_field(found, form.key_field)) if form.key_field else b""
    return key, parse_time(_field(found, form.time_field)) if form.time_field else 0


def _field(found: dict[str, Any], name: str) -> Any:
    if name not in found:
        raise Misuse(f"the object has no field {shown(name)}")
    return found[name]


def _key(value: Any) -> bytes:
    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if type(value) is int:
        return b"%d" % value
    raise Misuse(f"the key is a JSON {_noun(value)}, not a string or a whole number")


def parse_time(value: Any) -> int:
    """Return a time in ns since the epoch: ISO 8601 text (UTC if it names no zone), or ns.

    >>> parse_time("2013-01-01T05:17:00.000000001Z"), parse_time(12)
    (1357017420000000001, 12)
    """
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value
    if not isinstance(value, str):
        raise Misuse(f"the time is a JSON {_noun(value)}, not ISO 8601 text or whole nanoseconds")
    match = _TIME.fullmatch(value)
    whole, fraction, zone = match.groups() if match else (value, None, "")
    try:
        time = datetime.fromisoformat(whole + zone)
    except ValueError:
        raise Misuse(
            f"the time {shown(value)} is not ISO 8601, such as 2013-01-01T05:17:00Z"
        ) from None
    fraction = fraction or f"{time.microsecond:06}"  # as of 20130101T051700.5
    time = time.replace(microsecond=0)
    seconds = int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())
    time_ns = seconds * 1_000_000_000 + int(fraction.ljust(9, "0"))
    if not -(1 << 63) <= time_ns < 1 << 63:
        raise Misuse(f"the time {shown(value)} is not of the years 1678 to 2261")
    return time_ns


def _too_long(size: int, limit: int) -> str:
    return f"a message of {size} bytes is larger than the limit of {limit} (message_bytes_max)"


def _noun(value: Any) -> str:
    nouns = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return "null" if value is None else nouns.get(type(value), "object")

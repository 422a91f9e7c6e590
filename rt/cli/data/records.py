"""Records: parses input lines as messages, with a key and a time if they have them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rt.errors import Misuse
from rt.names import shown
from rt.text import json_noun, parse_time


@dataclass(frozen=True, slots=True)
class Form:
    """How to parse lines.

    Attributes:
        ndjson: Whether each line is a JSON object; otherwise the line is the payload.
        key_field: The JSON field with the key; "" for no keys.
        time_field: The JSON field with the publish time; "" for the current time.
    """

    ndjson: bool = False
    key_field: str = ""
    time_field: str = ""

    def __post_init__(self) -> None:
        if not self.ndjson and (self.key_field or self.time_field):
            raise Misuse("a key or time field needs JSON lines; give --format ndjson")


@dataclass(frozen=True, slots=True)
class Records:
    """Parsed messages in order, up to the first bad line, for `Publisher.publish_many`."""

    payloads: list[bytes]
    keys: list[bytes] | None
    times_ns: list[int] | None
    bad_line: int | None = None  # index of the first bad line among the given lines
    reason: str = ""

    def cut(self, size: int) -> "list[Records]":
        """Split the records into pieces of at most `size`."""
        return [self._piece(start, start + size) for start in range(0, len(self.payloads), size)]

    def _piece(self, start: int, end: int) -> "Records":
        keys, times = self.keys, self.times_ns
        return Records(
            self.payloads[start:end], keys and keys[start:end], times and times[start:end]
        )


def read_records(lines: list[bytes], form: Form, message_bytes_max: int) -> Records:
    """Return the messages of `lines` up to the first bad line, and why that line is bad."""
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
        raise Misuse(f"a JSON {json_noun(found)}, not an object")
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
    raise Misuse(f"the key is a JSON {json_noun(value)}, not a string or a whole number")


def _too_long(size: int, limit: int) -> str:
    return f"a message of {size} bytes is larger than the limit of {limit} (message_bytes_max)"

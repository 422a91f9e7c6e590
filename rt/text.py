"""Text: how all of rt formats times and JSON, and makes text safe to show."""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from rt.errors import Misuse
from rt.names import shown

_TIME: Final = re.compile(r"(.+?[0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,]([0-9]{1,9}))?([^.,]*)")
# Characters that can move a cursor, forge a line or reverse text: C0 and C1 controls, DEL, line and
# paragraph separators, bidirectional controls, and lone surrogates, which encoders refuse.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_TWO_DIGITS: Final = [f"{number:02d}" for number in range(60)]
_MINUTES: Final = [f"T{hour:02d}:{minute:02d}:" for hour in range(24) for minute in range(60)]


def time_text(time_ns: int) -> str:
    """Return ns since the epoch as ISO 8601 with nine decimals; "" outside the calendar.

    >>> time_text(1357017420000000001)
    '2013-01-01T05:17:00.000000001Z'
    """
    seconds, fraction = divmod(time_ns, 1_000_000_000)
    day, second = divmod(seconds, 86_400)
    text, minute, second = _day_text(day), *divmod(second, 60)
    if not text:
        return ""
    return "%s%s%s.%09dZ" % (text, _MINUTES[minute], _TWO_DIGITS[second], fraction)  # noqa: UP031 - faster


def first_few(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Return the first names, and how many more there are.

    >>> first_few(["jfk", "lga"], 2), first_few(["jfk", "lga"], 1), first_few("abcd", 2, "; ")
    ('jfk, lga', 'jfk and 1 more', 'a; b; and 2 more')
    """
    left, last = len(names) - most, between.strip(", ")
    return between.join(names[:most]) + (f"{last} and {left:,} more" if left > 0 else "")


@lru_cache(maxsize=1024)
def counted(number: int, noun: str = "message") -> str:
    """Return a number with its noun, in the plural if need be.

    >>> counted(1), counted(2000, "file")
    ('1 message', '2,000 files')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name most like `name`; "" if none is similar.

    >>> nearest("sloww", ["fast", "slow"]), nearest("zzz", ["fast", "slow"])
    ('slow', '')
    """
    from difflib import get_close_matches  # noqa: PLC0415 - only needed for a mistake

    return next(iter(get_close_matches(name, list(known), n=1)), "")


def _day_text(day: int) -> str:
    try:
        return (date(1970, 1, 1) + timedelta(day)).isoformat()
    except OverflowError:
        return ""


def parse_time(value: Any) -> int:
    """Parse a time, given as ISO 8601 text (UTC if it has no zone) or as ns since the epoch.

    >>> parse_time("2013-01-01T05:17:00.000000001Z"), parse_time(12)
    (1357017420000000001, 12)
    """
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value
    if not isinstance(value, str):
        raise Misuse(
            f"the time is a JSON {json_noun(value)}, not ISO 8601 text or whole nanoseconds"
        )
    match = _TIME.fullmatch(value)
    whole, fraction, zone = match.groups() if match else (value, None, "")
    try:
        time = datetime.fromisoformat(whole + zone)
    except ValueError:
        raise Misuse(
            f"the time {shown(value)} is not ISO 8601, such as 2013-01-01T05:17:00Z"
        ) from None
    # The basic format, 20130101T051700.5, has its fraction in `time`.
    fraction = fraction or f"{time.microsecond:06}"
    time = time.replace(microsecond=0)
    seconds = int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())
    time_ns = seconds * 1_000_000_000 + int(fraction.ljust(9, "0"))
    if not -(1 << 63) <= time_ns < 1 << 63:
        raise Misuse(f"the time {shown(value)} is not of the years 1678 to 2261")
    return time_ns


def printable(text: str) -> str:
    r"""Return text that is safe for a terminal or a log: one line, controls escaped.

    Use it for everything that a peer or a file can influence: names, keys, reasons, payloads and
    errors.

    >>> print(printable("AA1\x1b[2J\n\u202egnp.exe"))
    AA1\x1b[2J\x0a\u202egnp.exe
    """
    return text if text.isascii() and text.isprintable() else _UNSAFE.sub(_escaped, text)


def json_text(value: Any, indent: int | None = None) -> str:
    r"""Return a value as JSON: UTF-8 where that is safe to show, escaped elsewhere.

    >>> print(json_text({"key": "Zürich \u202e\x9b"}))
    {"key": "Zürich \u202e\u009b"}
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return text if indent is None and text.isascii() and text.isprintable() else json_safe(text)


def json_safe(text: str) -> str:
    """Escape unsafe characters in JSON text, where they can only occur inside strings."""
    return _UNSAFE.sub(lambda match: match[0] if match[0] == "\n" else _json_escaped(match), text)


def _json_escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def text_field(name: str, value: bytes) -> dict[str, str]:
    r"""Return bytes as a field: text if they are UTF-8, otherwise base64 under another name.

    >>> text_field("key", b"AA1"), text_field("key", b"\xff")
    ({'key': 'AA1'}, {'key_base64': '/w=='})
    """
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(value).decode()}


def headers_fields(headers: Mapping[str, bytes]) -> dict[str, dict[str, str]]:
    r"""Return headers as fields: `headers`, and `headers_base64` for values that are not UTF-8.

    >>> headers_fields({"a": b"1", "b": b"\xff"}), headers_fields({})
    ({'headers': {'a': '1'}, 'headers_base64': {'b': '/w=='}}, {})
    """
    found: dict[str, dict[str, str]] = {}
    for name, value in headers.items():
        ((kind, text),) = text_field("headers", value).items()
        found.setdefault(kind, {})[name] = text
    return found


def json_noun(value: Any) -> str:
    """Return the JSON name of a value's type."""
    nouns = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return "null" if value is None else nouns.get(type(value), "object")


def listed(names: Sequence[str]) -> str:
    """Return names as prose.

    >>> listed(["n1"]), listed(["n1", "n2", "n3"])
    ('n1', 'n1, n2 and n3')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)

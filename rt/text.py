"""Text: times and bytes as text, and text as times, one way for every part of rt."""

import re
from base64 import b64encode
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from rt.errors import Misuse
from rt.names import shown

_TIME: Final = re.compile(r"(.+?[0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,]([0-9]{1,9}))?([^.,]*)")
_TWO_DIGITS: Final = [f"{number:02d}" for number in range(60)]
_MINUTES: Final = [f"T{hour:02d}:{minute:02d}:" for hour in range(24) for minute in range(60)]


def time_text(time_ns: int) -> str:
    """Return ns since the epoch as ISO 8601 with nine decimals; "" if no calendar has the day.

    >>> time_text(1357017420000000001)
    '2013-01-01T05:17:00.000000001Z'
    """
    seconds, fraction = divmod(time_ns, 1_000_000_000)
    day, second = divmod(seconds, 86_400)
    text, minute, second = _day_text(day), *divmod(second, 60)
    if not text:
        return ""
    return "%s%s%s.%09dZ" % (text, _MINUTES[minute], _TWO_DIGITS[second], fraction)  # noqa: UP031 - faster


@lru_cache(maxsize=1024)
def _day_text(day: int) -> str:
    try:
        return (date(1970, 1, 1) + timedelta(day)).isoformat()
    except OverflowError:
        return ""


def parse_time(value: Any) -> int:
    """Return a time in ns since the epoch: ISO 8601 text (UTC if it names no zone), or ns.

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
    fraction = fraction or f"{time.microsecond:06}"  # as of 20130101T051700.5
    time = time.replace(microsecond=0)
    seconds = int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())
    time_ns = seconds * 1_000_000_000 + int(fraction.ljust(9, "0"))
    if not -(1 << 63) <= time_ns < 1 << 63:
        raise Misuse(f"the time {shown(value)} is not of the years 1678 to 2261")
    return time_ns


def text_field(name: str, value: bytes) -> dict[str, str]:
    r"""Return a field for bytes: as text if they are UTF-8, else in base64 under another name.

    >>> text_field("key", b"AA1"), text_field("key", b"\xff")
    ({'key': 'AA1'}, {'key_base64': '/w=='})
    """
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(value).decode()}


def json_noun(value: Any) -> str:
    """Return what JSON calls the type of a value."""
    nouns = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return "null" if value is None else nouns.get(type(value), "object")

"""Date text: dates and timestamps in JSON strings, read by the rules of Spark's casts."""

import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - local times are counted from it too
_EPOCH_DAY: Final = _EPOCH.toordinal()
_DAYS_400_YEARS: Final = 146_097
_LAST_CYCLE: Final = 23  # 400 years that end before `date` does
_GREGORIAN_BEGIN: Final = -141_427  # 1582-10-15, in days since the epoch
_DAY_US: Final = 86_400_000_000
_OFFSET_MAX_S: Final = 18 * 3600
_TRIMMED: Final = "".join(map(chr, [*range(0x21), 0x7F]))
_YEARS: Final = re.compile(
    r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL
)
_MOMENT: Final = re.compile(
    r"([+-]?)([0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T]"
    r"([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?(.*))?)?)?)?)?",
    re.DOTALL,
)
_OFFSET: Final = re.compile(
    r"([+-])(?:([0-9]{1,2})|([0-9]{2}):?([0-9]{2})|([0-9]{2}):([0-9]{2}):([0-9]{2})"
    r"|([0-9]{2})([0-9]{2})([0-9]{2}))"
)
_SHORT_IDS: Final = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka", "CAT": "Africa/Harare", "CNT": "America/St_Johns",
    "CST": "America/Chicago", "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
    "EST": "-05:00", "MST": "-07:00", "HST": "-10:00",
}  # fmt: skip


def read_date(text: str) -> int:
    """Return the days since the epoch; `ValueError` if `text` is not a date."""
    for candidate in (text, text.replace("GMT", "")):
        found = _YEARS.fullmatch(candidate.strip(_TRIMMED))
        if found:
            try:
                return _days(*_date_parts(found))
            except ValueError:
                continue
    return _from_julian(_whole(text))  # Spark 1.5 wrote days


def read_timestamp(text: str, zone: tzinfo) -> int:
    """Return the microseconds since the epoch; `ValueError` if `text` is not a moment.

    Args:
        text: with a zone of its own, or without.
        zone: what it means without one.
    """
    for candidate in (text, text.replace("GMT", "")):
        try:
            return _moment(candidate, zone)
        except ValueError:
            continue
    raise ValueError(f"{text[:40]!r} is not a timestamp")


def read_local_timestamp(text: str) -> int:
    """Return the microseconds since the epoch of a local time, which names no zone."""
    days, time_us, name = _parts(text)
    if name is not None:
        raise ValueError(f"{text[:40]!r} names a zone")
    return days * _DAY_US + time_us


@lru_cache(maxsize=256)
def time_zone(name: str) -> tzinfo:
    """Return the zone that Java would; `ValueError` if there is none of this name."""
    # +h:mm and +hh:m, which Java alone would refuse
    name = re.sub(r"([+-])(\d):", r"\g<1>0\2:", name, count=1)
    name = re.sub(r"([+-])(\d\d):(\d)$", r"\1\2:0\3", name, count=1)
    name = _SHORT_IDS.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    for prefix in ("UTC", "GMT", "UT", ""):
        if name.startswith(prefix) and name[len(prefix) :][:1] in ("+", "-"):
            return _fixed(name[len(prefix) :])
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise ValueError(f"there is no time zone {name[:40]!r}") from None


def _fixed(text: str) -> tzinfo:
    found = _OFFSET.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:40]!r} is not an offset from UTC")
    hours, minutes, seconds = ([int(p) for p in found.groups()[1:] if p is not None] + [0, 0])[:3]
    total = hours * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or total > _OFFSET_MAX_S:
        raise ValueError(f"{text[:40]!r} is more than 18 hours from UTC")
    return timezone(timedelta(seconds=-total if found[1] == "-" else total))


def _moment(text: str, zone: tzinfo) -> int:
    days, time_us, name = _parts(text)
    if name is not None:
        zone = time_zone(name.strip(_TRIMMED))
    return days * _DAY_US + time_us - _offset_us(days, time_us, zone)


def _offset_us(days: int, time_us: int, zone: tzinfo) -> int:
    """The offset of a local time; the earlier of two, and in a gap the one before it."""
    if not 0 < days + _EPOCH_DAY <= date.max.toordinal():  # the calendar repeats
        cycles = 0 if days < 0 else _LAST_CYCLE
        place = (days + _EPOCH_DAY - 1) % _DAYS_400_YEARS + 1
        days = place + cycles * _DAYS_400_YEARS - _EPOCH_DAY
    local = _EPOCH + timedelta(days=days, microseconds=time_us)
    offset = zone.utcoffset(local)
    return offset // timedelta(microseconds=1) if offset is not None else 0


def _parts(text: str) -> tuple[int, int, str | None]:
    """Days since the epoch, microseconds of the day, and the zone's name if there is one."""
    text = text.strip(_TRIMMED)
    found = _MOMENT.fullmatch(text)
    if found is None:
        return _time_alone(text)
    hour, minute, second = (int(part or 0) for part in found.groups()[4:7])
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"{text[:40]!r} is not a time of day")
    micros = int((found[8] or "")[:6].ljust(6, "0"))
    time_us = ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros
    return _days(*_date_parts(found)), time_us, found[9] or None


def _time_alone(text: str) -> tuple[int, int, str | None]:
    """A time without a date means today, and would change from one attempt to the next."""
    raise ValueError(f"{text[:40]!r} names no day")


def _date_parts(found: re.Match[str]) -> tuple[int, int, int]:
    year = int(found[2]) * (-1 if found[1] == "-" else 1)
    return year, int(found[3] or 1), int(found[4] or 1)


def _days(year: int, month: int, day: int) -> int:
    """Of a date of the Gregorian calendar, which is taken to have always been there."""
    cycles, place = divmod(year - 1, 400)  # `date` knows the years from 1 on
    return date(place + 1, month, day).toordinal() - _EPOCH_DAY + cycles * _DAYS_400_YEARS


def _from_julian(days: int) -> int:
    """The day whose name was that of a day counted when the Julian calendar held."""
    if days >= _GREGORIAN_BEGIN:
        return days
    place = days + 719_470  # since 0000-03-01 of the Julian calendar
    year, rest = divmod(4 * place + 3, 1461)
    day_of_year = rest // 4
    month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month + 2) // 5
    year, month = year + (month > 9), month + (3 if month < 10 else -9)
    return _days(year, month, 1) + day


def _whole(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,19}", text) or not -(1 << 31) <= int(text) < 1 << 31:
        raise ValueError(f"{text[:40]!r} is not a date")
    return int(text)

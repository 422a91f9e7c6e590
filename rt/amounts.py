"""Amounts: how sizes and durations are written for people."""

from typing import Final

_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_TIME_UNITS: Final = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def size_text(size: float) -> str:
    """Return a number of bytes for people, with at most four digits.

    >>> size_text(0), size_text(1536), size_text(123456789), size_text(106390912 * 1024)
    ('0 B', '1.5 KiB', '118 MiB', '101 GiB')
    """
    unit = 0
    while size >= (1023.5 if unit else 1024) and unit < len(_BYTE_UNITS) - 1:
        size /= 1024
        unit += 1
    return f"{size:.{0 if unit == 0 or size >= 99.95 else 1}f} {_BYTE_UNITS[unit]}"


def duration_text(seconds: float) -> str:
    """Return a rounded duration for people; from one minute on, it is in its two largest units.

    >>> duration_text(0.0042), duration_text(0.25), duration_text(5), duration_text(59.4)
    ('4.2 ms', '250 ms', '5 s', '59 s')
    >>> duration_text(90), duration_text(3600), duration_text(3725), duration_text(200000)
    ('1 min 30 s', '1 h', '1 h 2 min', '2 d 7 h')
    """
    if not seconds >= 0.9995:  # so NaN too
        return f"{_short(seconds * 1000)} ms" if seconds >= 0.00005 else "0 s"
    if seconds < 59.5:
        return f"{_short(seconds)} s"
    whole = round(min(seconds, 1e15))
    place, (unit, length_s) = next(
        (place, each) for place, each in enumerate(_TIME_UNITS) if whole >= each[1]
    )
    more, rest_s = _TIME_UNITS[place + 1]
    rest = whole % length_s // rest_s
    return f"{whole // length_s} {unit}" + (f" {rest} {more}" if rest else "")


def _short(number: float) -> str:
    """Return a number below 10 with at most one decimal, and any other as a whole number.

    >>> _short(5.0), _short(4.25), _short(9.96), _short(420.4)
    ('5', '4.2', '10', '420')
    """
    return f"{number:.1f}".removesuffix(".0") if number < 9.95 else f"{number:.0f}"

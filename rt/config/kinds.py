"""Kinds: the types that a setting may have, and how each is parsed and shown."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from rt.amounts import size_text
from rt.errors import Misuse

TEXT_LENGTH_MAX: Final = 32  # characters of a number with its unit; 64 bits take 20 digits
NUMBER_MAX: Final = (1 << 63) - 1  # the largest length that the kernel accepts
NONE: Final = "none"  # how an unset optional setting is written

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_FLOAT: Final = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?")
_AMOUNT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)")
_TRUTHS: Final = dict.fromkeys(("true", "yes", "on", "1"), True)
_UNTRUTHS: Final = dict.fromkeys(("false", "no", "off", "0"), False)
_POWERS: Final = {
    **{f"{letter}i": 1024**n for n, letter in enumerate("KMGT", 1)},
    **{letter: 1000**n for n, letter in enumerate("KMGT", 1)},
    "": 1,
}
_SECONDS: Final = {
    "": Decimal(1), "us": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": Decimal(1),
    "min": Decimal(60), "h": Decimal(3600), "d": Decimal(86400),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SettingKind:
    """One kind of setting.

    Attributes:
        expected: How an error message names this kind, such as "a size such as 256Ki".
        parse: Parses text; `ValueError` if it is not of this kind.
        native: The types that a TOML or Python value of this kind may have.
        take: Checks a native value; `ValueError` if it is out of range.
        show: Formats a value as text that `parse` reads.
        approximate: Formats a value for people; "" if `show` is as easy to read.
        optional: Whether it may be None, written `none`.
    """

    expected: str
    parse: Callable[[str], Any]
    native: tuple[type, ...]
    take: Callable[[Any], Any]
    show: Callable[[Any], str] = str
    approximate: Callable[[Any], str] = lambda _: ""
    optional: bool = False

    def convert_text(self, text: str) -> Any:
        """Convert the text of an option or environment variable to a value.

        Raises:
            ValueError: The text is not of this kind.
        """
        return None if self.optional and text == NONE else self.parse(text)

    def convert(self, value: object) -> Any:
        """Convert a value from a TOML file or a caller.

        Raises:
            ValueError: The value is not of this kind.
        """
        if self.optional and (value is None or value == NONE):
            return None
        # To Python, True is an int; but `port = true` is a mistake.
        if type(value) is bool and bool not in self.native:
            raise ValueError("true and false are not numbers")
        if not isinstance(value, self.native):
            raise ValueError(f"{type(value).__name__} is the wrong type")
        return self.take(value)

    def text(self, value: object) -> str:
        """Return the value as a user would write it."""
        return NONE if value is None else self.show(value)

    def explained_text(self, value: object) -> str:
        """Return the value as a user would write it, and approximately if that is hard to read.

        >>> kind_of(Bytes).explained_text(106390912 * 1024), kind_of(Bytes).explained_text(65536)
        ('106390912Ki (101 GiB)', '64Ki')
        """
        about = "" if value is None else self.approximate(value)
        return f"{self.text(value)} ({about})" if about else self.text(value)


def parse_bytes(text: str) -> int:
    """Parse a size in bytes: K, M, G, T are powers of 1000; Ki, Mi, Gi, Ti of 1024.

    >>> parse_bytes("256Ki"), parse_bytes("1.5G"), parse_bytes("64")
    (262144, 1500000000, 64)
    """
    return _whole(_amount(text.removesuffix("B"), _POWERS))


def show_bytes(size: int) -> str:
    """Format a size exactly, in the largest binary unit that divides it.

    >>> show_bytes(262144), show_bytes(1000), show_bytes(0)
    ('256Ki', '1000', '0')
    """
    units = [unit for unit in ("Ti", "Gi", "Mi", "Ki") if size and size % _POWERS[unit] == 0]
    return f"{size // _POWERS[units[0]]}{units[0]}" if units else str(size)


def _approximate_bytes(size: int) -> str:
    """Return a size for people; "" if its exact form has four digits or fewer."""
    return "" if len(show_bytes(size).rstrip("KMGTi")) <= 4 else size_text(size)


def parse_seconds(text: str) -> float:
    """Parse a duration into seconds; the units are us, ms, s (the default), min, h and d.

    >>> parse_seconds("250ms"), parse_seconds("2"), parse_seconds("1.5h")
    (0.25, 2.0, 5400.0)
    """
    return float(_amount(text, _SECONDS))


def show_seconds(seconds: float) -> str:
    """Format a duration in the largest unit that divides it.

    >>> show_seconds(0.25), show_seconds(2.0), show_seconds(90.0), show_seconds(86400.0)
    ('250ms', '2s', '90s', '1d')
    """
    if 0 < seconds < 1:
        return f"{seconds * 1000:g}ms"
    units = (("d", 86_400), ("h", 3600), ("min", 60))
    unit, size = next((each for each in units if seconds and seconds % each[1] == 0), ("s", 1))
    return f"{seconds / size:g}{unit}"


def kind_of(hint: Any) -> SettingKind:
    """Return the kind of a dataclass field with this type hint.

    Raises:
        Misuse: No kind exists for this type.
    """
    if get_origin(hint) in (UnionType, Union):
        inner = [argument for argument in get_args(hint) if argument is not NoneType]
        if len(inner) == 1:
            return replace(kind_of(inner[0]), optional=True)
    kinds = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, SettingKind)]
    if kinds:
        return kinds[0]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        parse = partial(_parse_choice, hint)
        return SettingKind(f"one of {', '.join(hint)}", parse, (str,), parse)
    if hint not in _KINDS:
        raise Misuse(f"a setting of type {hint} has no written form; use a type of rt.config.kinds")
    return _KINDS[hint]


def _amount(text: str, units: Mapping[str, Decimal | int]) -> Decimal:
    match = _AMOUNT.fullmatch(text) if len(text) <= TEXT_LENGTH_MAX else None
    if match is None or match[2] not in units:
        raise ValueError("not a number with a known unit")
    return Decimal(match[1]) * units[match[2]]


def _whole(size: Decimal | float) -> int:
    if not 0 <= size <= NUMBER_MAX or size != int(size):
        raise ValueError("not a whole number of bytes below 2**63")
    return int(size)


def _span(seconds: float) -> float:
    if not 0 <= seconds < math.inf:
        raise ValueError("not a length of time")
    return float(seconds)


def _take_bytes(value: str | float) -> int:
    return parse_bytes(value) if isinstance(value, str) else _whole(value)


def _take_seconds(value: str | float) -> float:
    return parse_seconds(value) if isinstance(value, str) else _span(value)


def _parse_choice(choices: type[StrEnum], text: str) -> StrEnum:
    if text not in list(choices):
        raise ValueError("not one of them")
    return choices(text)


def _parse_integer(text: str) -> int:
    if len(text) > TEXT_LENGTH_MAX or not _INTEGER.fullmatch(text):
        raise ValueError("not a whole number")
    return int(text)


def _parse_float(text: str) -> float:
    if len(text) > TEXT_LENGTH_MAX or not _FLOAT.fullmatch(text):
        raise ValueError("not a number")
    return _finite(float(text))


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError("not finite")
    return float(number)


def _parse_truth(text: str) -> bool:
    try:
        return (_TRUTHS | _UNTRUTHS)[text.lower()]
    except KeyError:
        raise ValueError("neither yes nor no") from None


def _parse_path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError("not a path")
    return Path(text)


def _parse_texts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",")) if text else ()


def _take_texts(values: Sequence[object]) -> tuple[str, ...]:
    texts = tuple(value for value in values if isinstance(value, str))
    if len(texts) != len(values):
        raise ValueError("not a list of strings")
    return texts


# TOML has no units, so a size or duration may be a string there.
_NUMBER_OR_TEXT: Final = (int, float, str)
_KINDS: Final[dict[Any, SettingKind]] = {
    bool: SettingKind(
        "true or false", _parse_truth, (bool,), bool, lambda truth: str(truth).lower()
    ),
    int: SettingKind("a whole number", _parse_integer, (int,), int),
    float: SettingKind("a number", _parse_float, (int, float), _finite),
    str: SettingKind("a string", str, (str,), str),
    Path: SettingKind("a path", _parse_path, (str, Path), lambda value: _parse_path(str(value))),
    tuple[str, ...]: SettingKind(
        "names separated by commas", _parse_texts, (list, tuple), _take_texts, ",".join
    ),
}

Bytes = Annotated[
    int,
    SettingKind(
        "a size such as 64, 256Ki or 1G",
        parse_bytes,
        _NUMBER_OR_TEXT,
        _take_bytes,
        show_bytes,
        _approximate_bytes,
    ),
]
Seconds = Annotated[
    float,
    SettingKind(
        "a time such as 250ms, 2s or 5min",
        parse_seconds,
        _NUMBER_OR_TEXT,
        _take_seconds,
        show_seconds,
    ),
]

"""JSON values: turns the tokens of one JSON object into a row, as Spark's `from_json` does.

Each converter reads the current value and leaves the tokens on its last one. What fails is
caught where Spark catches it, so that a row keeps the same columns when others are malformed.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import tzinfo
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rt.spark.date_text import read_date, read_local_timestamp, read_timestamp
from rt.spark.java_text import Base64Error, copied_json, read_base64, read_utf8, well_formed
from rt.spark.json_tokens import (
    BEGIN_ARRAY,
    BEGIN_OBJECT,
    END_ARRAY,
    END_OBJECT,
    FALSE,
    FLOAT,
    INT,
    NAME,
    NULL,
    STRING,
    TRUE,
    JsonError,
    JsonTokens,
)

Converter = Callable[[JsonTokens], Any]

_LONG_BITS: Final = 64
_INT_RANGES: Final = {
    # Jackson lets a byte be read unsigned too, and then keeps its eight bits.
    8: (-128, 255), 16: (-(1 << 15), (1 << 15) - 1),
    32: (-(1 << 31), (1 << 31) - 1), 64: (-(1 << 63), (1 << 63) - 1),
}  # fmt: skip
_NAMED_NUMBERS: Final = {
    "NaN": "nan", "+INF": "inf", "+Infinity": "inf", "Infinity": "inf", "-INF": "-inf",
    "-Infinity": "-inf",
}  # fmt: skip
_DECIMAL: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,10})?")


@dataclass(frozen=True, slots=True)
class JsonRow:
    """The fields of one payload.

    Attributes:
        values: one for each field, None where it is missing, null or malformed.
        error: why the payload is malformed; "" if it is not.
    """

    values: list[Any]
    error: str = ""


class _Partial(JsonError):  # noqa: N818 - it carries a value
    """Something inside a value was malformed; the rest of it is kept."""

    def __init__(self, value: Any, cause: JsonError) -> None:
        super().__init__(str(cause))
        self.value = value
        self.cause = cause


class JsonRows:
    """Reads payloads one by one, for columns of these types."""

    def __init__(self, fields: list[Any], zone: tzinfo) -> None:
        """Prepare the converters.

        Args:
            fields: Arrow fields.
            zone: of timestamps that name none.
        """
        self._count = len(fields)
        self._converters = _field_converters(fields, zone)

    def read(self, payload: bytes) -> JsonRow:
        """Read one payload. An empty one is a row of nulls, and not malformed."""
        tokens = JsonTokens(read_utf8(payload))
        try:
            token = tokens.next()
            if token is None:
                return JsonRow([None] * self._count)
            if token != BEGIN_OBJECT:
                return JsonRow([None] * self._count, "it is not a JSON object")
            return JsonRow(_object(tokens, self._converters))
        except _Partial as error:
            return JsonRow(error.value, str(error.cause))
        except JsonError as error:
            return JsonRow([None] * self._count, str(error))


def _field_converters(fields: Any, zone: tzinfo) -> dict[str, tuple[int, Converter]]:
    return {field.name: (place, _converter(field.type, zone)) for place, field in enumerate(fields)}


def _object(tokens: JsonTokens, converters: dict[str, tuple[int, Converter]]) -> list[Any]:
    row: list[Any] = [None] * len(converters)
    failed: JsonError | None = None
    while tokens.next() not in (END_OBJECT, None):
        found = converters.get(well_formed(tokens.name))
        if found is None:
            tokens.skip_children()
            continue
        place, convert = found
        try:
            row[place] = convert(tokens)
        except _Partial as error:
            failed = failed or _named(error.cause, tokens)
            row[place] = error.value
        except JsonError as error:
            failed = failed or _named(error, tokens)
            tokens.skip_children()
    if failed is not None:
        raise _Partial(row, failed)
    return row


def _named(error: JsonError, tokens: JsonTokens) -> JsonError:
    return JsonError(f"{tokens.name[:60]}: {error}")


def _converter(kind: Any, zone: tzinfo) -> Converter:
    """Return the converter of an Arrow type; docs/SPARK.md lists the types there are."""
    types = pa.types
    if types.is_list(kind):
        return _array(_converter(kind.value_type, zone))
    if types.is_struct(kind):
        return _struct(kind, zone)
    if types.is_map(kind):
        return _map(_converter(kind.item_type, zone))
    return _SIMPLE.get(kind) or _number_or_moment(kind, zone)


def _number_or_moment(kind: Any, zone: tzinfo) -> Converter:
    types = pa.types
    if types.is_timestamp(kind):
        return _timestamp(zone if kind.tz else None)
    if types.is_integer(kind):
        return _scalar((INT,), lambda text, _: _integer(text, kind.bit_width))
    if types.is_decimal(kind):
        return _scalar((INT, FLOAT, STRING), _decimal(kind.precision, kind.scale))
    return _scalar((INT, FLOAT, STRING), _float32 if kind.bit_width == 32 else _float64)


def _value_of(tokens: JsonTokens) -> str | None:
    """The token of the current value; None for null, or where there is none."""
    while tokens.token == NAME:
        tokens.next()
    return None if tokens.token == NULL else tokens.token


def _scalar(allowed: tuple[str, ...], convert: Callable[[str, str], Any]) -> Converter:
    """A converter of tokens of these kinds; an empty string fits none of them."""

    def read(tokens: JsonTokens) -> Any:
        token = _value_of(tokens)
        if token is None:
            return None
        text = tokens.text
        if token not in allowed or not text:
            shown = repr(text[:40]) if token == STRING else text[:40]
            raise JsonError(f"{shown} does not fit the column's type")
        try:
            return convert(text, token)
        except ValueError as error:
            raise JsonError(str(error)) from None

    return read


def _boolean(tokens: JsonTokens) -> Any:
    return _scalar((TRUE, FALSE), lambda text, _: text == TRUE)(tokens)


def _integer(text: str, bits: int) -> int:
    value = int(text)
    low, high = _INT_RANGES[bits]
    if not low <= value <= high:
        raise ValueError(f"{text[:40]} is out of range")
    return value - 256 if bits == 8 and value > 127 else value


def _float64(text: str, token: str) -> float:
    if token == STRING and text not in _NAMED_NUMBERS:
        raise ValueError(f"{text[:40]!r} is not a number")
    value = float(_NAMED_NUMBERS.get(text, text))
    return 0.0 if token == INT and not value else value  # an integer has no negative zero


def _float32(text: str, token: str) -> float:
    value = _float64(text, token)
    near = np.float32(value)
    if not np.isfinite(near) or float(near) == value:
        return float(near)
    # Rounded twice, a text next to the middle of two floats would go the wrong way.
    exact = Fraction(text)
    with np.errstate(all="ignore"):
        others = (
            near,
            np.nextafter(near, np.float32("inf")),
            np.nextafter(near, -np.float32("inf")),
        )
    best = min(
        (each for each in others if np.isfinite(each)),
        key=lambda each: (abs(Fraction(float(each)) - exact), each.view("i4") & 1),
    )
    return float(best)


def _decimal(precision: int, scale: int) -> Callable[[str, str], Decimal]:
    def read(text: str, token: str) -> Decimal:
        if token == STRING:
            text = text.replace(",", "")
        if not _DECIMAL.fullmatch(text):
            raise ValueError(f"{text[:40]!r} is not a number")
        context = Context(
            prec=len(text) + precision + scale, rounding=ROUND_HALF_UP, Emin=MIN_EMIN, Emax=MAX_EMAX
        )
        value = Decimal(text, context)
        if value and value.adjusted() > precision - scale:
            raise ValueError(f"{text[:40]} has more than {precision} digits")
        value = value.quantize(Decimal(1).scaleb(-scale), context=context)
        if value and value.adjusted() >= precision - scale:
            raise ValueError(f"{text[:40]} has more than {precision} digits")
        return value

    return read


def _date(tokens: JsonTokens) -> Any:
    return _scalar((STRING,), lambda text, _: read_date(text))(tokens)


def _timestamp(zone: tzinfo | None) -> Converter:
    if zone is None:
        return _scalar((STRING,), lambda text, _: read_local_timestamp(text))

    def read(text: str, token: str) -> int:
        if token == STRING:
            return read_timestamp(text, zone)
        micros = _integer(text, _LONG_BITS) * 1_000_000  # seconds; Java keeps 64 bits of these
        return (micros + (1 << 63)) % (1 << 64) - (1 << 63)

    return _scalar((STRING, INT), read)


def _binary(tokens: JsonTokens) -> Any:
    token = _value_of(tokens)
    if token is None:
        return None
    if token != STRING:
        raise JsonError(f"{tokens.text[:40]} does not fit the column's type")
    try:
        return read_base64(tokens.text)
    except Base64Error as error:
        if error.passes_quote:
            tokens.reopen_string()
        raise JsonError(str(error)) from None
    except JsonError:
        tokens.reopen_string()
        raise


def _text(tokens: JsonTokens) -> Any:
    token = _value_of(tokens)
    if token is None:
        return None
    return well_formed(tokens.text if token == STRING else copied_json(tokens))


def _struct(kind: Any, zone: tzinfo) -> Converter:
    fields = [kind.field(place) for place in range(kind.num_fields)]
    converters = _field_converters(fields, zone)
    names = [field.name for field in fields]

    def read(tokens: JsonTokens) -> Any:
        if not _begins(tokens, BEGIN_OBJECT):
            return None
        try:
            return dict(zip(names, _object(tokens, converters), strict=True))
        except _Partial as error:
            error.value = dict(zip(names, error.value, strict=True))
            raise

    return read


def _array(convert: Converter) -> Converter:
    def read(tokens: JsonTokens) -> Any:
        if not _begins(tokens, BEGIN_ARRAY):
            return None
        values: list[Any] = []
        failed: JsonError | None = None
        while tokens.next() not in (END_ARRAY, None):
            try:
                values.append(convert(tokens))
            except _Partial as error:
                failed = failed or error.cause
                values.append(error.value)
        if failed is not None:
            raise _Partial(values, failed)
        return values

    return read


def _map(convert: Converter) -> Converter:
    def read(tokens: JsonTokens) -> Any:
        if not _begins(tokens, BEGIN_OBJECT):
            return None
        pairs: list[tuple[str, Any]] = []
        partial: JsonError | None = None
        bad: JsonError | None = None
        while tokens.next() not in (END_OBJECT, None):
            key = well_formed(tokens.name)
            try:
                pairs.append((key, convert(tokens)))
            except _Partial as error:
                partial = partial or error.cause
                pairs.append((key, error.value))
            except JsonError as error:
                bad = bad or error
                tokens.skip_children()
        if bad is not None:
            raise bad
        if partial is not None:
            raise _Partial(pairs, partial)
        return pairs

    return read


def _begins(tokens: JsonTokens, wanted: str) -> bool:
    """Whether an object or array begins here; False for null."""
    token = _value_of(tokens)
    if token is not None and token != wanted:
        raise JsonError(f"{tokens.text[:40]!r} does not fit the column's type")
    return token is not None


_SIMPLE: Final[dict[Any, Converter]] = {
    pa.bool_(): _boolean,
    pa.date32(): _date,
    pa.binary(): _binary,
    pa.string(): _text,
}

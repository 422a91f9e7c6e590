"""Java text: strings and numbers as the JVM reads and writes them."""

import base64
import codecs
import re
from decimal import Decimal
from typing import Final

from rt.spark.json_tokens import (
    BEGIN_ARRAY,
    BEGIN_OBJECT,
    END_ARRAY,
    END_OBJECT,
    FLOAT,
    INT,
    NAME,
    STRING,
    JsonError,
    JsonTokens,
)

_BASE64: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_BASE64_UNIT: Final = re.compile(
    rf"[\x00-\x20]*(?:([{_BASE64}]{{4}})|([{_BASE64}]{{2}}==|[{_BASE64}]{{3}}=))"
)
_HANDLER: Final = "rt-java-utf8"
_LONE_HANDLER: Final = "rt-java-lone-surrogate"
_ESCAPES: Final = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_MAX_PLAIN, _MIN_PLAIN = 1e7, 1e-3  # where Double.toString begins to write exponents


def read_utf8(data: bytes) -> str:
    """Decode UTF-8 with one U+FFFD for each malformed sequence, as Java delimits those."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode(errors=_HANDLER)


def well_formed(text: str) -> str:
    """Return a text without lone surrogates, which Java writes as a question mark."""
    try:
        text.encode()
    except UnicodeEncodeError:
        units = text.encode("utf-16-le", "surrogatepass")
        return units.decode("utf-16-le", _LONE_HANDLER)
    return text


class Base64Error(ValueError):
    """A string is not base64; whether its closing quote was read as part of it."""

    def __init__(self, *, passes_quote: bool) -> None:
        super().__init__("it is not base64")
        self.passes_quote = passes_quote


def read_base64(text: str) -> bytes:
    """Decode base64 as Jackson does: white space and padding may come between units."""
    parts, at = [], 0
    while text[at:].strip("".join(map(chr, range(33)))):
        found = _BASE64_UNIT.match(text, at)
        if found is None:
            rest = text[at:].lstrip("".join(map(chr, range(33))))
            is_unit = re.fullmatch(rf"[{_BASE64}](?:[{_BASE64}]=)?", rest)
            raise Base64Error(passes_quote=is_unit is not None)
        parts.append(base64.b64decode(found[1] or found[2]))
        at = found.end()
    return b"".join(parts)


def double_text(value: float) -> str:
    """Write a double as `Double.toString` of Java 19 does."""
    if value != value:  # noqa: PLR0124 - NaN
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or _MIN_PLAIN <= abs(value) < _MAX_PLAIN:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    power = int(exponent) + len(text) - 1
    return f"{'-' * sign}{text[0]}.{text[1:] or '0'}E{power}"


def copied_json(tokens: JsonTokens) -> str:
    """Write the current value, with all that is in it, as JSON; the tokens end on its last one.

    Raises:
        JsonError: the JSON ends or is malformed inside of it.
    """
    if tokens.token in (END_OBJECT, END_ARRAY):
        raise JsonError("there is no value")
    parts: list[str] = []
    depth, comma = 0, ""
    while True:
        token = tokens.token
        if token is None:
            raise JsonError("the text ends inside an object or array")
        if token in (END_OBJECT, END_ARRAY):
            depth -= 1
            parts.append(token)
            comma = ","
        elif token == NAME:
            parts.append(f"{comma}{_quoted(tokens.name)}:")
            comma = ""
        elif token in (BEGIN_OBJECT, BEGIN_ARRAY):
            depth += 1
            parts.append(comma + token)
            comma = ""
        else:
            parts.append(comma + _scalar(tokens, token))
            comma = ","
        if not depth:
            return "".join(parts)
        tokens.next()


def _scalar(tokens: JsonTokens, token: str) -> str:
    if token == STRING:
        return _quoted(tokens.text)
    if token == INT:
        return "0" if tokens.text == "-0" else tokens.text
    if token == FLOAT:
        text = double_text(float(tokens.text))
        return text if text[-1].isdigit() else f'"{text}"'
    return token


def _quoted(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"' if not text.isalnum() else f'"{text}"'


def _escaped(char: str) -> str:
    if char in ('"', "\\"):
        return "\\" + char
    code = ord(char)
    if code < ord(" "):
        return _ESCAPES.get(char) or f"\\u{code:04X}"
    if 0xD800 <= code <= 0xDFFF:
        return f"\\u{code:04X}"
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04X}\\u{0xDC00 + (code & 0x3FF):04X}"
    return char


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Java takes an encoded surrogate as one malformed sequence, Python as three."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    data, start = error.object, error.start
    encodes_surrogate = data[start] == 0xED and data[start + 1 : start + 2].ljust(1)[0] >= 0xA0
    if encodes_surrogate and data[start + 1] <= 0xBF:
        third = data[start + 2 : start + 3]
        return "\ufffd", start + (3 if third and third[0] & 0xC0 == 0x80 else 2)
    return "\ufffd", error.end


def _question_mark(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "?", error.start + 2


codecs.register_error(_HANDLER, _replaced)
codecs.register_error(_LONE_HANDLER, _question_mark)

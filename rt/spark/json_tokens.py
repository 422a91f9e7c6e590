"""JSON tokens: splits one JSON text into tokens exactly as Spark's parser, Jackson, does.

Spark reads JSON token by token and keeps what it had when a token turned out to be wrong, so
the rows of malformed records depend on where its parser stops and goes on. This is that
parser (`ReaderBasedJsonParser`) with the settings of `from_json`: single quotes and NaN are
allowed; comments, leading zeros and control characters in strings are not.
"""

import re
from typing import Final

from rt.errors import RtError

NAME, STRING, INT, FLOAT = "name", "string", "int", "float"
TRUE, FALSE, NULL = "true", "false", "null"
BEGIN_OBJECT, END_OBJECT, BEGIN_ARRAY, END_ARRAY = "{", "}", "[", "]"

# Jackson's limits, which Spark leaves as they are.
DEPTH_MAX: Final = 1000
NUMBER_LENGTH_MAX: Final = 1000

_ROOT: Final = ""
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_PLAIN: Final = {
    '"': re.compile(r'[^"\\\x00-\x1f]*'),
    "'": re.compile(r"[^'\\\x00-\x1f]*"),
}
_ESCAPES: Final = {
    "b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "/": "/", "\\": "\\", "'": "'",
}  # fmt: skip
_HEX_DIGITS: Final = frozenset("0123456789ABCDEFabcdef")
_DIGITS: Final = re.compile(r"[0-9]*")
_WORDS: Final = {"t": ("true", TRUE), "f": ("false", FALSE), "n": ("null", NULL)}
_INFINITE: Final = {
    "-INF": "-Infinity", "+INF": "Infinity", "-Infinity": "-Infinity", "+Infinity": "Infinity",
}  # fmt: skip


class JsonError(RtError):
    """A JSON text is malformed, or a value does not fit its column."""


class _Context:
    """An object or array that is open: how many entries it has had, and the current name."""

    __slots__ = ("entries", "kind", "name")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.entries = 0
        self.name = ""


class JsonTokens:
    """Reads tokens from one JSON text.

    Attributes:
        token: the current token; None before the first one and after the last.
    """

    def __init__(self, text: str) -> None:
        self.token: str | None = None
        self._text = text
        self._at = 0
        self._open = [_Context(_ROOT)]
        self._ahead: str | None = None  # the value's token, read together with its name
        self._quote = ""  # of a string whose characters have not been read yet
        self._was_lazy = False  # whether the current string is one of double quotes
        self._value = ""  # of the current string or number

    @property
    def name(self) -> str:
        """The name of the current value or, at the start of an object or array, of that."""
        inside = self.token in (BEGIN_OBJECT, BEGIN_ARRAY) and len(self._open) > 1
        return self._open[-2 if inside else -1].name

    @property
    def text(self) -> str:
        """The characters of the current string, name or number."""
        if self.token == STRING:
            self._finish_string()
            return self._value
        if self.token == NAME:
            return self.name
        return self._value if self.token in (INT, FLOAT) else self.token or ""

    def next(self) -> str | None:
        """Go to the next token and return it; None at the end of the text.

        Raises:
            JsonError: there is no valid token here.
        """
        if self.token == NAME:
            # None after an error in this value: a caller that caught it finds the text at its end
            self.token, self._ahead = self._ahead, None
            self._enter(self.token)
            return self.token
        self._finish_string()
        char = self._skip_space()
        if not char:
            if len(self._open) > 1:
                raise JsonError("the text ends inside an object or array")
            self.token = None
        elif char in "]}":
            self._leave(char)
        else:
            self._begin_entry(char)
        return self.token

    def reopen_string(self) -> None:
        """Take the string that was read last to go on after its quote.

        Jackson decodes base64 from the text as it is; a closing quote where a character of
        a unit must be is an error to it, and passed over.
        """
        if self._was_lazy:
            self._quote = '"'

    def skip_children(self) -> None:
        """Go to the end of the current object or array; do nothing on any other token."""
        depth = 1 if self.token in (BEGIN_OBJECT, BEGIN_ARRAY) else 0
        while depth:
            token = self.next()
            if token in (BEGIN_OBJECT, BEGIN_ARRAY):
                depth += 1
            elif token in (END_OBJECT, END_ARRAY):
                depth -= 1
            elif token is None:
                raise JsonError("the text ends inside an object or array")

    def _begin_entry(self, char: str) -> None:
        context = self._open[-1]
        context.entries += 1
        if context.kind and context.entries > 1:
            if char != ",":
                raise self._unexpected(char, "a comma")
            char = self._skip_space()
            if not char:
                raise JsonError("the text ends after a comma")
        if context.kind != BEGIN_OBJECT:
            self.token = self._value_token(char)
            self._enter(self.token)
            return
        context.name = self._read_name(char)
        self.token = NAME
        self._ahead = self._value_token(self._skip_colon())

    def _enter(self, token: str | None) -> None:
        if token in (BEGIN_OBJECT, BEGIN_ARRAY):
            self._open.append(_Context(str(token)))
            if len(self._open) - 1 > DEPTH_MAX:
                raise JsonError(f"objects and arrays are nested more than {DEPTH_MAX} deep")

    def _leave(self, char: str) -> None:
        if self._open[-1].kind != ("[" if char == "]" else "{"):
            raise self._unexpected(char, "the end of something else")
        self._open.pop()
        self.token = char

    def _skip_space(self) -> str:
        """Pass over white space and one character after it; return that, or "" at the end."""
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return self._take()

    def _take(self) -> str:
        char = self._text[self._at : self._at + 1]
        self._at += len(char)
        if char and char < " " and char not in "\t\r\n":
            raise JsonError(f"control character {ord(char)} between tokens")
        if char == "/":
            raise self._unexpected(char, "a value: comments are not allowed")
        return char

    def _skip_colon(self) -> str:
        char = self._skip_space()
        if char != ":":
            raise self._unexpected(char, "a colon after the name")
        char = self._skip_space()
        if not char:
            raise JsonError("the text ends after a colon")
        return char

    def _read_name(self, char: str) -> str:
        if char not in ('"', "'"):
            raise self._unexpected(char, "a name in quotes")
        return self._read_string(char)

    def _value_token(self, char: str) -> str:
        if char == '"':
            self._quote, self._was_lazy = char, True
            return STRING
        if char in "{[":
            return char
        if char in "0123456789":
            return self._number(self._at - 1)
        if char == "-":
            return self._signed_number(char)
        if char in _WORDS:
            word, token = _WORDS[char]
            self._match_word(word, 1)
            return token
        return self._odd_value(char)

    def _odd_value(self, char: str) -> str:
        if char == "'":
            self._value, self._was_lazy = self._read_string(char), False
            return STRING
        if char == "N":
            self._match_word("NaN", 1)
            return self._is_float("NaN")
        if char == "I":
            self._match_word("Infinity", 1)
            return self._is_float("Infinity")
        if char == "+":
            return self._not_finite(char)
        raise self._unexpected(char, "a value")

    def _is_float(self, value: str) -> str:
        self._value = value
        return FLOAT

    def _signed_number(self, sign: str) -> str:
        if self._text[self._at : self._at + 1] in tuple("0123456789"):
            return self._number(self._at - 1)
        return self._not_finite(sign)

    def _not_finite(self, sign: str) -> str:
        for word in ("INF", "Infinity"):
            if self._text.startswith(word[:2], self._at):
                self._at += 2
                self._match_word(word, 2)
                return self._is_float(_INFINITE[sign + word])
        char = self._text[self._at : self._at + 1]
        self._at += len(char)
        raise self._unexpected(char, f"a digit after {sign}")

    def _number(self, begin: int) -> str:
        """Read the number that begins at `begin`, whose first digit is known to be one."""
        text = self._text
        first = begin + (text[begin] == "-")
        if text[first] == "0" and text[first + 1 : first + 2] in tuple("0123456789"):
            self._at = first + 1
            raise JsonError("a number has leading zeros")
        self._at = first
        digits, token = self._digits(), INT
        if text[self._at : self._at + 1] == ".":
            self._at += 1
            digits, token = digits + self._some_digits("after the decimal point"), FLOAT
        if text[self._at : self._at + 1] in ("e", "E"):
            self._at += 1
            self._at += text[self._at : self._at + 1] in ("+", "-")
            digits, token = digits + self._some_digits("in the exponent"), FLOAT
        if digits - (text[first] == "0" and token == FLOAT) > NUMBER_LENGTH_MAX:
            raise JsonError(f"a number has more than {NUMBER_LENGTH_MAX} digits")
        self._value = text[begin : self._at]
        return token

    def _digits(self) -> int:
        found = _DIGITS.match(self._text, self._at)
        begin, self._at = self._at, found.end() if found else self._at
        return self._at - begin

    def _some_digits(self, where: str) -> int:
        count = self._digits()
        if not count:
            char = self._text[self._at : self._at + 1]
            self._at += len(char)
            raise self._unexpected(char, f"a digit {where}")
        return count

    def _match_word(self, word: str, known: int) -> None:
        """Read the rest of a word of which `known` characters have been read."""
        for place in range(known, len(word)):
            if self._text[self._at : self._at + 1] != word[place]:
                raise self._unexpected(self._text[self._at : self._at + 1], word)
            self._at += 1
        after = self._text[self._at : self._at + 1]
        if after.isalnum() or after in ("_", "$"):
            raise self._unexpected(after, f"the end of {word}")

    def _finish_string(self) -> None:
        if self._quote:
            quote, self._quote = self._quote, ""
            self._value = self._read_string(quote)

    def _read_string(self, quote: str) -> str:
        plain, text, parts = _PLAIN[quote], self._text, []
        while True:
            found = plain.match(text, self._at)
            if found:
                parts.append(found[0])
                self._at = found.end()
            char = text[self._at : self._at + 1]
            self._at += len(char)
            if char == quote:
                return "".join(parts)
            if char == "\\":
                parts.append(self._escaped())
            elif char:
                raise JsonError(f"control character {ord(char)} in a string")
            else:
                raise JsonError("the text ends inside a string")

    def _escaped(self) -> str:
        char = self._text[self._at : self._at + 1]
        self._at += len(char)
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char != "u":
            raise self._unexpected(char, "an escape sequence")
        begin = self._at
        for _ in range(4):
            char = self._text[self._at : self._at + 1]
            self._at += len(char)
            if char not in _HEX_DIGITS:
                raise self._unexpected(char, "a hexadecimal digit")
        return chr(int(self._text[begin : self._at], 16))

    def _unexpected(self, char: str, wanted: str) -> JsonError:
        found = repr(char) if char else "the end of the text"
        return JsonError(f"found {found} at character {self._at}, expected {wanted}")

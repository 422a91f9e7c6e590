"""Where: selects messages by session, key, headers and fields of a JSON payload."""

import json
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import reduce
from typing import Any, Final, NamedTuple

from rt.errors import Misuse
from rt.format.checksum import crc32
from rt.format.frame import HEADERS_COLUMN, KEYS_COLUMN
from rt.format.message import Batch, Message
from rt.names import NameGlob, glob_matches, parse_glob

TERMS_MAX: Final = 64
SHARES_MAX: Final = 1024
_SHARE: Final = re.compile(r"([0-9]{1,4})/([0-9]{1,4})")
_TERM: Final = re.compile(
    r"\s*(session|key|header\.[^=!<>\s]+|(?:\.[^.=!<>\s]+)+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*",
    re.DOTALL,
)
_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_FORM: Final = (
    "write NAME OPERATOR VALUE, such as 'session=eu-*', 'key=AA*' or '.delay>=30'; a NAME is "
    "session, key, header.NAME or the path of a JSON field, .flight.number"
)


class Where:
    """Conditions that must all hold.

    `session=eu-*` and `session!=jfk` compare names or globs; `key=AA1` and `key!=AA*` compare keys
    or, with `*` at the end, key prefixes; `header.content-type=text/*` compares a header in
    the same way, and excludes messages without that header. `.delay>=30` and
    `.flight.carrier=AA` compare a field of a JSON object by `=`, `!=`, `<`, `<=`, `>` or `>=` with
    a number, a text, `true`, `false` or `null`; quotes turn any other value into a text. A message
    does not match if its payload is not JSON or lacks the field. If the field and the value have
    different types, only `!=` matches.

    Sessions are selected without reading a frame's body. A payload is decoded only if its bytes
    contain what a match needs.

    Examples:
        >>> Where.parse(["session=eu-*", ".delay>=30"]).wants_session("jfk")
        False
    """

    def __init__(
        self,
        *,
        sessions: "Iterable[_Session]" = (),
        keys: "Iterable[_Key | _Share]" = (),
        headers: "Iterable[_Header]" = (),
        fields: "Iterable[_Field]" = (),
    ) -> None:
        """Use `parse` instead."""
        self._sessions = tuple(sessions)
        self._keys = tuple(keys)
        self._headers = tuple(headers)
        self._fields = tuple(fields)

    @classmethod
    def parse(
        cls, terms: str | Collection[str] | None, key_prefix: bytes = b"", share: str = ""
    ) -> "Where":
        """Parse conditions; without any, every message matches.

        Args:
            terms: one condition or several, as described for the class.
            key_prefix: only messages whose key begins with this.
            share: `2/4` for the second of four equal shares of all keys.

        Raises:
            Misuse: a condition or the share is not understood; the message quotes it.
        """
        if not isinstance(terms, Collection | None):
            raise Misuse(f"where is a condition or a list of them, not {type(terms).__name__}")
        given = [terms] if isinstance(terms, str) else list(terms or ())
        if len(given) > TERMS_MAX:
            raise Misuse(f"{len(given)} terms; use {TERMS_MAX} at most")
        sessions, headers, fields = [], [], []
        keys: list[_Key | _Share] = [_parse_share(share)] if share else []
        if key_prefix:
            keys.append(_Key(key_prefix, is_prefix=True, is_wanted=True))
        for term in given:
            name, sign, value = _split(term)
            if name == "session":
                sessions.append(_Session(parse_glob(value), _is_equal(term, sign)))
            elif name == "key":
                keys.append(_parse_key(value, is_wanted=_is_equal(term, sign)))
            elif name.startswith("header."):
                wanted = _parse_key(value, is_wanted=_is_equal(term, sign))
                headers.append(_Header(name.removeprefix("header."), wanted))
            else:
                fields.append(_parse_field(term, name, sign, value))
        return cls(sessions=sessions, keys=keys, headers=headers, fields=fields)

    @property
    def is_of_messages(self) -> bool:
        """Whether some messages of a session can match and others not."""
        return bool(self._keys or self._headers or self._fields)

    @property
    def is_of_sessions(self) -> bool:
        """Whether any condition selects sessions."""
        return bool(self._sessions)

    def wants_session(self, session: str) -> bool:
        """Whether messages of this session can match."""
        return all(glob_matches(each.glob, session) == each.is_wanted for each in self._sessions)

    def wanted(self, batch: Batch) -> list[bool] | None:
        """Return which messages of a batch match by key, headers and payload; None if all do.

        The session is not checked again. A batch that cannot match is not decoded.

        Raises:
            FrameError: the frame cannot be decoded.
        """
        if not self.is_of_messages:
            return None
        found = self._by_key(batch)
        if self._headers and any(found):
            self._by_header(batch, found)
        if self._fields and any(found):
            self._by_field(batch, found)
        return found

    def messages(self, batch: Batch, places: Iterator[int] | None = None) -> Iterator[Message]:
        """The messages of a batch that match; arguments and errors as for `Batch.messages`."""
        wanted = self.wanted(batch)
        return batch.messages(places) if wanted is None else batch.messages_among(wanted, places)

    def _by_key(self, batch: Batch) -> list[bool]:
        if not self._keys:
            return [True] * len(batch)
        if not batch.header.columns & KEYS_COLUMN:
            return [all(each.matches(b"") for each in self._keys)] * len(batch)
        keys = batch.columns.message_keys()[batch.first :]
        return [all(each.matches(key) for each in self._keys) for key in keys]

    def _by_header(self, batch: Batch, found: list[bool]) -> None:
        """Clear `found` for messages whose headers do not match."""
        if not batch.header.columns & HEADERS_COLUMN:
            found[:] = [False] * len(found)
            return
        for place, headers in enumerate((batch.columns.headers or [])[batch.first :]):
            found[place] = found[place] and all(each.matches(headers) for each in self._headers)

    def _by_field(self, batch: Batch, found: list[bool]) -> None:
        """Clear `found` for messages whose payload does not match."""
        payloads = bytes(batch.columns.payload)
        if not all(each.may_be_in(payloads) for each in self._fields):
            found[:] = [False] * len(found)
            return
        for place, payload in enumerate(batch.payloads()):
            found[place] = found[place] and self._matches(payload)

    def _matches(self, payload: bytes) -> bool:
        if not all(each.may_be_in(payload) for each in self._fields):
            return False
        try:
            value = _decode_json(payload.decode())
        except (ValueError, RecursionError):
            return False
        return all(each.matches(value) for each in self._fields)


class _Session(NamedTuple):
    glob: NameGlob
    is_wanted: bool


class _Key(NamedTuple):
    text: bytes
    is_prefix: bool
    is_wanted: bool

    def matches(self, key: bytes) -> bool:
        found = key.startswith(self.text) if self.is_prefix else key == self.text
        return found == self.is_wanted


class _Header(NamedTuple):
    name: str
    wanted: _Key

    def matches(self, headers: Mapping[str, bytes]) -> bool:
        value = headers.get(self.name)
        return value is not None and self.wanted.matches(value)


class _Share(NamedTuple):
    member: int
    members: int

    def matches(self, key: bytes) -> bool:
        return crc32(key) % self.members == self.member


class _Field(NamedTuple):
    path: tuple[str, ...]
    compare: Callable[[Any, Any], bool]
    value: Any
    needles: tuple[bytes, ...]

    def may_be_in(self, data: bytes) -> bool:
        r"""Whether JSON contains the texts that a match needs, or a backslash that may hide one."""
        return all(needle in data for needle in self.needles) or b"\\" in data

    def matches(self, payload: Any) -> bool:
        try:
            found = reduce(_member, self.path, payload)
        except KeyError:
            return False
        if _kind(found) is not _kind(self.value):
            return self.compare is operator.ne
        return self.compare(found, self.value)


def _member(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value[name]
    raise KeyError(name)


def _kind(value: Any) -> type:
    """Return a value's JSON type; all numbers are of one type."""
    return float if type(value) is int else type(value)


def _split(term: str) -> tuple[str, str, str]:
    match = _TERM.fullmatch(term) if isinstance(term, str) else None
    if match is None:
        raise Misuse(f"not a condition: {str(term)[:60]!r}; {_FORM}")
    return match[1], match[2], match[3]


def _is_equal(term: str, sign: str) -> bool:
    if sign in ("=", "!="):
        return sign == "="
    raise Misuse(
        f"not a condition: {term[:60]!r}; session, key and headers are compared by = or !="
    )


def _parse_share(text: str) -> _Share:
    match = _SHARE.fullmatch(text)
    member, members = map(int, match.groups()) if match else (0, 0)
    if not 0 < member <= members <= SHARES_MAX:
        raise Misuse(f"not a share: {text[:40]!r}; 2/4 is the second of 4, of {SHARES_MAX} at most")
    return _Share(member - 1, members)


def _parse_key(text: str, *, is_wanted: bool) -> _Key:
    try:
        # a command line passes arbitrary bytes as surrogates
        key = text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise Misuse(f"not a key: {text[:40]!a} is not UTF-8") from None
    return _Key(key.removesuffix(b"*"), key.endswith(b"*"), is_wanted)


def _parse_field(term: str, name: str, sign: str, text: str) -> _Field:
    if not text:
        raise Misuse(f'not a condition: {term[:60]!r}; give a value, or "" for an empty text')
    value = _parse_value(text)
    if sign not in ("=", "!=") and _kind(value) not in (str, float):
        raise Misuse(f"not a condition: {term[:60]!r}; {text} is compared by = or !=")
    path = tuple(name[1:].split("."))
    texts = (*path, value) if sign == "=" and isinstance(value, str) else path
    # a text that is not UTF-8 can only be spelled with backslashes
    needles = tuple(each.encode(errors="backslashreplace") for each in texts)
    return _Field(path, _COMPARISONS[sign], value, needles)


def _parse_value(text: str) -> Any:
    try:
        value = _decode_json(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, dict | list) else value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_decode_json: Final[Callable[[str], Any]] = json.JSONDecoder(parse_constant=_refuse_constant).decode

"""Names: one short grammar for every name, and the only way from a name to a path."""

import posixpath
import re
from functools import lru_cache
from sys import intern
from typing import Final, NewType

from rt.errors import Misuse

SessionName = NewType("SessionName", str)
StreamName = NewType("StreamName", str)
NodeName = NewType("NodeName", str)
PeerName = NewType("PeerName", str)  # name in a certificate: of a node, publisher or subscriber
NameGlob = NewType("NameGlob", str)  # a name in which `*` matches any characters

MERGED_NAME: Final = "out"  # name of a merged log and its directory
# a DNS label, so that a name can be used as a host or a Kubernetes label
NAME_LENGTH_MAX: Final = 63
# characters of a refused text shown in a message: enough to recognise it
SHOWN_LENGTH_MAX: Final = 40

# unambiguous, so matching never backtracks
_NAME: Final = re.compile(r"[a-z0-9]+(?:[-._][a-z0-9]+)*")
_GLOB: Final = re.compile(r"[-._a-z0-9*]+")

_CURSOR: Final = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?")
# Names of our own directories and files; a peer with such a name could shadow one.
_OURS: Final = frozenset({"in", "out", "log", "manifest", "state", "quarantine", "lock", "certs"})
_OUR_BEGINNINGS: Final = ("log", "quarantine")  # log.0.0, quarantine.jfk.0
_OUR_ENDINGS: Final = (".idx", ".lock", ".old", ".tmp")
# Device names on Windows, with any extension, so that the tree can be copied to a Windows share.
_DEVICES: Final = frozenset(
    {"aux", "con", "nul", "prn"} | {f"{port}{n}" for port in ("com", "lpt") for n in range(10)}
)
_RULE: Final = (
    "use 1 to 63 lower-case letters and digits, with single '-', '.' or '_' inside, such as 'jfk'"
)


def parse_session(text: str) -> SessionName:
    """Return `text` as a session name, which identifies one publisher in a stream.

    Args:
        text: The session's name as given by a user, a file or a peer.

    Raises:
        Misuse: `text` is not a valid name, or is reserved; the message says which rule it broke.

    >>> parse_session("jfk.runway-4")
    'jfk.runway-4'
    """
    return SessionName(_parse("session", text))


@lru_cache(4096)  # 0.2 KB each; nodes send each other their sessions' names in every report
def decode_session(data: bytes) -> SessionName:
    """Decode and check a session name sent by a peer.

    Raises:
        UnicodeDecodeError: the bytes are not ASCII.
        Misuse: as for `parse_session`.

    >>> decode_session(b"jfk")
    'jfk'
    """
    return parse_session(data.decode("ascii"))


def parse_stream(text: str) -> StreamName:
    """Return `text` as a stream name; `Misuse` as for `parse_session`."""
    return StreamName(_parse("stream", text))


def parse_node(text: str) -> NodeName:
    """Return `text` as a node name; `Misuse` as for `parse_session`."""
    return NodeName(_parse("node", text))


def parse_peer(text: str) -> PeerName:
    """Return `text` as a name for a certificate; `Misuse` as for `parse_session`."""
    return PeerName(_parse("peer", text))


def is_cursor(text: str) -> bool:
    """Whether `text` is a valid cursor name."""
    return _CURSOR.fullmatch(text) is not None


def parse_cursor(text: str) -> str:
    """Return `text` as a cursor name; `Misuse` if `text` is not a valid name.

    >>> parse_cursor("billing-eu")
    'billing-eu'
    """
    if not isinstance(text, str) or not _CURSOR.fullmatch(text):
        raise Misuse(
            f"{shown(text)} is not a name for a cursor or a group; use up to 64 of a-z, 0-9, dash "
            "and underscore, beginning and ending with a letter or digit"
        )
    return text


def parse_group(text: str) -> str:
    """Return `text` as the name of a group of sessions, or "" for none; `Misuse` if not valid."""
    return _parse("group", text) if text else ""


def parse_glob(text: str) -> NameGlob:
    """Return `text` as a glob over names: the characters of a name, and `*`.

    Raises:
        Misuse: `text` has any other character, is too long, or has no `*` and is not a valid name.

    >>> parse_glob("jfk-*")
    'jfk-*'
    """
    if not isinstance(text, str) or "*" not in text:
        return NameGlob(_parse("name or glob", text))
    if len(text) > NAME_LENGTH_MAX or not _GLOB.fullmatch(text):
        raise Misuse(f"not a glob over names: {shown(text)}; {_RULE}, and '*' for any characters")
    return NameGlob(text)


def glob_matches(glob: NameGlob, name: str) -> bool:
    """Whether `glob` matches `name`.

    The first and last part are anchored; the others are searched from left to right. Taking the
    earliest match of each never requires backtracking, so the time is linear in the name.

    >>> glob_matches(parse_glob("jfk-*"), "jfk-4"), glob_matches(parse_glob("jfk-*"), "jfk")
    (True, False)
    """
    first, *others = glob.split("*")
    if not others:
        return name == glob
    last = others.pop()
    start, end = len(first), len(name) - len(last)
    if start > end or not (name.startswith(first) and name.endswith(last)):
        return False
    for part in others:
        found = name.find(part, start, end)
        if found < 0:
            return False
        start = found + len(part)
    return True


def stream_directory(root: str, stream: str) -> str:
    """Return the directory of `stream` under `root`; `Misuse` unless `stream` is a valid name."""
    if not root:
        raise Misuse("root is empty; name the directory that holds the stream, or . for this one")
    return posixpath.join(root, parse_stream(stream))


def merged_directory(root: str, stream: str) -> str:
    """Return the directory of the merged log of `stream` under `root`."""
    return posixpath.join(stream_directory(root, stream), MERGED_NAME)


def session_directory(root: str, stream: str, session: str) -> str:
    """Return the directory of a session under `root`: the only way from a name to a path.

    The names are parsed again here although their types say that they are valid, because a mistaken
    cast would let any text pass.

    Args:
        root: The caller's own directory; it is trusted and used unchanged.
        stream: The stream's name.
        session: The session's name.

    Raises:
        Misuse: One of the names is not valid.

    >>> session_directory("/var/lib/rt", "flights", "jfk")
    '/var/lib/rt/flights/jfk'
    """
    return posixpath.join(stream_directory(root, stream), parse_session(session))


def shown(text: object) -> str:
    r"""Return untrusted text safe for a message: quoted, ASCII, at most 40 characters.

    >>> shown("a\nb")
    "'a\\nb'"
    """
    if not isinstance(text, str):
        return f"a value of type {type(text).__name__}"
    escaped = ascii(text[:SHOWN_LENGTH_MAX])[1:-1]
    whole = len(text) <= SHOWN_LENGTH_MAX and len(escaped) <= SHOWN_LENGTH_MAX
    return f"'{escaped}'" if whole else f"'{escaped[:SHOWN_LENGTH_MAX]}'..."


def _parse(noun: str, text: object) -> str:
    if isinstance(text, str) and len(text) <= NAME_LENGTH_MAX:
        if _is_name(text):
            return intern(str(text))  # a node holds some ten copies of each name
        if _NAME.fullmatch(text):
            raise Misuse(f"not a {noun} name: {shown(text)} is reserved; choose another")
    raise Misuse(f"not a {noun} name: {shown(text)}{_reason(text)}; {_RULE}")


@lru_cache(4096)  # short texts; a node parses its sessions' names in every report
def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and not _is_reserved(text)


def _is_reserved(name: str) -> bool:
    first = name.partition(".")[0]
    return (
        name in _OURS
        or first in _DEVICES
        or first in _OUR_BEGINNINGS
        or name.endswith(_OUR_ENDINGS)
    )


def _reason(text: object) -> str:
    if not isinstance(text, str):
        return ""
    if not text:
        return " is empty"
    if len(text) > NAME_LENGTH_MAX:
        return f" has {len(text)} characters"
    return " has upper-case letters" if _NAME.fullmatch(text.lower()) else ""

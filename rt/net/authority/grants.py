"""Grants: what each publisher and subscriber may do, from a file that is reread when it changes.

A certificate identifies its holder. What that holder may do is in `grants.toml`, next to `ca.pem`:

    [publisher.jfk]
    sessions = ["jfk", "jfk-*"]    # sessions it may push, and groups it may join
    streams = ["flights"]          # streams it may push to; by default each node's own

    [subscriber.spark]
    streams = ["flights"]          # streams it may pull
    leases = true                  # it may hold files back from the archiver

    [mirror.edge]
    streams = ["flights"]          # streams it may pull, and serve to others

What the file does not grant is refused. Nodes and operators need no entry: their role suffices.
"""

import os
import threading
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from rt.errors import Misuse, spoken
from rt.names import NameGlob, parse_glob, parse_peer, shown
from rt.net.authority.files import read_file
from rt.net.authority.identity import GLOBS_MAX, CertificateRole, PeerIdentity
from rt.net.authority.trust import FileStamp, file_stamp
from rt.text import printable

GRANTS_NAME: Final = "grants.toml"
_FILE_BYTES_MAX: Final = 4 << 20  # 30,000 holders
_WORDS_MAX: Final = 200  # characters quoted from a parser's message, which may quote the file
_OTHERS_WRITE: Final = 0o022
_LOOK_S: Final = 0.1  # a grant must end within a second; many connections share one check
# The keys that an entry of each role may have.
_GRANTED: Final = {
    CertificateRole.PUBLISHER: {"sessions", "streams"},
    CertificateRole.SUBSCRIBER: {"streams", "leases"},
    CertificateRole.MIRROR: {"streams"},
}


@dataclass(frozen=True, slots=True)
class Grant:
    """What one holder may do; nothing by default.

    Attributes:
        sessions: globs of the sessions that a publisher may push, and of the groups it may join.
        streams: globs of the streams that a subscriber may pull, or a publisher may push to.
        leases: whether a subscriber may hold leases in its own name.
    """

    sessions: tuple[NameGlob, ...] = ()
    streams: tuple[NameGlob, ...] = ()
    leases: bool = False


_NOTHING: Final = Grant()
GrantTable = Mapping[tuple[CertificateRole, str], Grant]


def grants_path(ca_path: str) -> str:
    """Return the path of a node's grants file, given the path of its authority."""
    return os.path.join(os.path.dirname(ca_path), GRANTS_NAME)


def parse_grants(data: bytes, path: str) -> GrantTable:
    r"""Parse the text of a grants file.

    Args:
        data: TOML in UTF-8.
        path: the path of the file, for messages.

    Raises:
        Misuse: the text is not valid; the message says where.

    >>> table = parse_grants(b'[publisher.jfk]\nsessions = ["jfk-*"]', "grants.toml")
    >>> table[CertificateRole.PUBLISHER, "jfk"].sessions
    ('jfk-*',)
    """
    try:
        tables = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise Misuse(f"{path}: not TOML: {printable(str(error))[:_WORDS_MAX]}") from error
    found: dict[tuple[CertificateRole, str], Grant] = {}
    for word, holders in tables.items():
        role = next((each for each in _GRANTED if each == word), None)
        if role is None or not isinstance(holders, dict):
            named = " or ".join(f"[{each}.NAME]" for each in _GRANTED)
            words = f"{shown(word)} is not a table of {named}"
            raise Misuse(f"{path}: {words}")
        for name, entry in holders.items():
            try:
                found[role, parse_peer(name)] = _grant(role, entry)
            except Misuse as error:
                raise Misuse(f"{path}: [{word}.{shown(name)}]: {error}") from None
    return found


def _grant(role: CertificateRole, entry: object) -> Grant:
    known = _GRANTED[role]
    if not isinstance(entry, dict):
        raise Misuse("not a table")
    for key in entry:
        if key not in known:
            raise Misuse(f"{shown(key)} is unknown; a {role} has {' and '.join(sorted(known))}")
    leases = entry.get("leases", False)
    if not isinstance(leases, bool):
        raise Misuse("leases is true or false")
    return Grant(_globs(entry, "sessions"), _globs(entry, "streams"), leases)


def _globs(entry: Mapping[str, Any], key: str) -> tuple[NameGlob, ...]:
    texts = entry.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise Misuse(f'{key} is a list of names, such as ["jfk-*"]')
    if len(texts) > GLOBS_MAX:
        raise Misuse(f"{key} has {len(texts)} globs, at most {GLOBS_MAX} are read; use '*'")
    return tuple(map(parse_glob, texts))


def read_grants(path: str) -> GrantTable:
    """Return the grants in a file; none if there is no file.

    Raises:
        Misuse: the file is not a valid grants file, or others may write to it.
    """
    try:
        data = read_file(path, _FILE_BYTES_MAX)
        if os.stat(path).st_mode & _OTHERS_WRITE:
            raise Misuse(f"{path}: others may write this file; run chmod go-w {path}")
    except FileNotFoundError:
        return {}
    return parse_grants(data, path)


class Grants:
    """The grants in one file, which is reread when it changes.

    If the file is damaged or disappears, the last good one stays in force and the problem is
    reported: a mistake must not cut every client off. If the file is missing at startup, nothing is
    granted.

    Threads: any thread may call any method. `_lock` guards `_stamp`, `_looked_s`, and reading the
    file; `_table` and `problem` are replaced as a whole and may be read without it.
    """

    def __init__(self, path: str) -> None:
        """Read the file at `path`; `Misuse` if it cannot be read."""
        self.path = path
        self.problem: str | None = None  # why the last good file is still in force
        self._lock = threading.Lock()
        self._looked_s = time.monotonic()
        self._stamp = file_stamp(path)
        self._table = read_grants(path)

    def is_as_before(self, holder: PeerIdentity) -> bool:
        """Whether `holder`, which `granted` returned, still has the same grants in the file.

        The file is looked at again only if the last look was more than 0.1 s ago.
        """
        if time.monotonic() - self._looked_s > _LOOK_S:
            self.refresh()
        grant = self._grant(holder)  # called for each connection, so the holder is not copied
        return (holder.sessions, holder.streams, holder.leases) == (
            grant.sessions, grant.streams, grant.leases,
        )  # fmt: skip

    def granted(self, holder: PeerIdentity) -> PeerIdentity:
        """Return `holder` with the grants that the file has for it now."""
        self.refresh()
        grant = self._grant(holder)
        return replace(holder, sessions=grant.sessions, streams=grant.streams, leases=grant.leases)

    def refresh(self) -> None:
        """Read the file again if it has changed."""
        with self._lock:
            self._looked_s = time.monotonic()
            stamp = file_stamp(self.path)
            if stamp == self._stamp:
                return
            try:
                self._read(stamp)
            except (Misuse, OSError) as error:
                self.problem = f"{spoken(error)}; the grants read before stay in force"

    def warning(self) -> str:
        """Return what is wrong with the file; "" if nothing."""
        if self.problem is None and self._stamp is None:
            words = "publishers and subscribers are refused; write it with rt certs grants"
            return f"{self.path}: no such file, so {words}"
        return self.problem or ""

    def _grant(self, holder: PeerIdentity) -> Grant:
        return self._table.get((holder.role, holder.name), _NOTHING)

    def _read(self, stamp: FileStamp) -> None:
        # set first, so that a damaged file is not parsed again until it changes
        self._stamp = stamp
        if stamp is None:
            raise Misuse(f"{self.path} has disappeared")
        self._table = read_grants(self.path)
        self.problem = None

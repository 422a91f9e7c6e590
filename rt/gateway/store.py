"""StreamStore: the state of all HTTP streams up to a position of the merged log, on disk.

The state is derived from the log, and rebuilt if the file is deleted. So it is written only about
once a second, in one transaction with the position, and no message waits for that.
"""

import json
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from typing import Final

from rt.errors import DiskFailed, Misuse
from rt.gateway.model import (
    DECODER,
    Heard,
    HttpStream,
    Producer,
    StreamChange,
    StreamVerdict,
    apply,
    is_json,
)
from rt.position import START, Position

_CACHED: Final = 10_000  # streams
_FORMAT: Final = 1
_TABLES: Final = """
    create table if not exists place (format integer, log text, position integer);
    create table if not exists stream (name text primary key, state text) without rowid;
    create table if not exists refused (at integer primary key);
"""


class StreamStore:
    """All streams of a gateway.

    Threads: any thread may call any method; `_lock` guards all fields.
    """

    def __init__(self, path: str, log_id: str) -> None:
        """Open or create the file.

        Args:
            path: the path of the SQLite file.
            log_id: the id of the merged log; streams from another log are deleted.

        Raises:
            Misuse: the file was written by a newer gateway, or by another program.
        """
        self._lock = threading.Lock()
        self._path = path
        self._cache: OrderedDict[str, HttpStream | None] = OrderedDict()
        self._changed: set[str] = set()
        self._refused: list[int] = []
        try:
            self._database = sqlite3.connect(path, check_same_thread=False)
            self._database.execute("pragma journal_mode = wal")
            # No commit waits for the disk: what a crash of the machine loses is executed again.
            self._database.execute("pragma synchronous = normal")
            self._database.executescript(_TABLES)
            found = self._database.execute("select format, log, position from place").fetchone()
        except sqlite3.DatabaseError as error:
            words = f"{path} cannot be read ({error}); delete it, and it is made from the log again"
            raise Misuse(words) from None
        if found is not None and found[0] != _FORMAT:
            self._database.close()
            raise Misuse(f"{path} is a newer gateway's; use that one, or delete the file")
        self.position = START
        if found is not None and found[1] == log_id:
            self.position = Position(found[2])
            return
        with self._database:
            for table in ("place", "stream", "refused"):
                self._database.execute(f"delete from {table}")  # noqa: S608 - our own names
            self._database.execute("insert into place values (?, ?, ?)", (_FORMAT, log_id, START))

    def get(self, name: str) -> HttpStream | None:
        """Return a copy of a stream; None if no stream has this name."""
        with self._lock:
            found = self._find(name)
            return None if found is None else found.copied()

    def summary(self, name: str) -> HttpStream | None:
        """Return a copy of a stream; None if the stream does not exist.

        The copy lacks the stream's producers, of which there may be a thousand.
        """
        with self._lock:
            found = self._find(name)
            return None if found is None else replace(found, heard={})

    def execute(
        self, name: str, change: StreamChange, payload: bytes, at: Position
    ) -> StreamVerdict:
        """Apply the change that a message makes; return its outcome."""
        with self._lock:
            stream = self._find(name)
            if change.has_data and stream is not None and _is_foreign(stream, payload):
                verdict = StreamVerdict(400, "the message is no JSON")
            else:
                stream, verdict = apply(stream, change, at)
            if verdict.is_new:
                self._cache[name] = stream
                self._changed.add(name)
            elif change.has_data and stream is not None:
                self._refused.append(at)
            return verdict if stream is None else verdict._replace(tail=stream.tail)

    def refused(self, begin: Position, end: Position) -> set[int]:
        """Return the positions of the messages from `begin` to `end` that are part of no stream."""
        with self._lock, self._speaking():
            rows = self._database.execute(
                "select at from refused where at >= ? and at < ?", (begin, end)
            )
            found = {at for (at,) in rows}
            return found | {at for at in self._refused if begin <= at < end}

    def commit(self, position: Position, begin: Position = START) -> None:
        """Write all changes, with the position up to which messages were executed.

        Args:
            position: everything before it was executed.
            begin: everything before it is archived, so refused messages before it are forgotten.

        Raises:
            DiskFailed: the file cannot be written.
        """
        with self._lock:
            if position != self.position:
                self._write(position, begin)
            while len(self._cache) > _CACHED:
                self._cache.popitem(last=False)

    def _write(self, position: Position, begin: Position) -> None:
        with self._speaking(), self._database:
            rows = [(name, _text(self._cache[name])) for name in self._changed]
            self._database.executemany("insert or replace into stream values (?, ?)", rows)
            self._database.execute("delete from stream where state is null")
            self._database.executemany(
                "insert or ignore into refused values (?)", [(at,) for at in self._refused]
            )
            self._database.execute("delete from refused where at < ?", (begin,))
            self._database.execute("update place set position = ?", (position,))
        self._changed.clear()
        self._refused.clear()
        self.position = position

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        """Turn errors of SQLite within the block into `DiskFailed`."""
        try:
            yield
        except sqlite3.Error as error:
            raise DiskFailed(f"{self._path} cannot be read or written: {error}") from None

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def _find(self, name: str) -> HttpStream | None:
        if name in self._cache:
            self._cache.move_to_end(name)
            return self._cache[name]
        with (
            self._speaking(),
            closing(
                self._database.execute("select state from stream where name = ?", (name,))
            ) as rows,
        ):
            row = rows.fetchone()
        found = self._cache[name] = None if row is None else _stream(row[0])
        return found


def _is_foreign(stream: HttpStream, payload: bytes) -> bool:
    """Whether a payload is not JSON although its stream is; programs may bypass the gateway."""
    if not is_json(stream.type):
        return False
    try:
        DECODER.decode(payload.decode())
    except (ValueError, RecursionError):
        return True
    return False


def _text(stream: HttpStream | None) -> str | None:
    return None if stream is None else json.dumps(asdict(stream), separators=(",", ":"))


def _stream(text: str) -> HttpStream:
    values = json.loads(text)
    closer = values.pop("closer")
    heard = {name: Heard(**each) for name, each in values.pop("heard").items()}
    begin, tail, last = (
        Position(values.pop("begin")),
        Position(values.pop("tail")),
        values.pop("last"),
    )
    return HttpStream(
        **values,
        begin=begin,
        tail=tail,
        last=None if last is None else Position(last),
        closer=None if closer is None else Producer(*closer),
        heard=heard,
    )

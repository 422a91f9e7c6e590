"""Manifest: the synced lines that record which files were rolled, archived or quarantined."""

import json
import re
from binascii import unhexlify
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter, lt
from struct import pack
from sys import intern
from typing import Any, Final, NamedTuple

from rt.errors import ManifestError
from rt.format.checksum import crc32
from rt.limits import MANIFEST_LINE_BYTES_MAX
from rt.position import (
    FILE_BYTES_MAX,
    OFFSET_BITS,
    ROLL_BITS,
    ROLL_END,
    RUN_END,
    Position,
    file_position,
)

FILE_NAME: Final = "manifest"
FORMAT: Final = 1
SESSION, MERGED = "session", "merged"


class LogIdentity(NamedTuple):
    """The manifest's first line, with the log's id; a log that is created again gets a new id."""

    kind: str  # "session" or "merged"
    stream: str
    name: str  # the session; "out" for a merged log
    id: str  # 32 hexadecimal digits, random
    created_ns: int
    group: str = ""  # sessions of a group publish the same numbered messages; "" if none

    @property
    def merged(self) -> bool:
        """Whether this is a merged log, whose frames come in ranges."""
        return self.kind == MERGED

    @property
    def session(self) -> str:
        """The session of all frames; "" in a merged log, where each range names its own."""
        return "" if self.merged else self.name


class Rolled(NamedTuple):
    """Manifest line of a file that is complete: it ends at `end`, even if bytes follow."""

    file: Position
    end: int  # bytes of whole frames
    first: int  # number of its first message: sequence number, or number in the merged stream
    next: int  # number after that of its last message
    first_time_ns: int
    last_time_ns: int
    at_ns: int  # when it was rolled; its age counts from here
    digest: str = ""  # running digest of a merged log at the file's end; 32 hexadecimal digits
    sessions: str = ""  # sessions in a merged file, separated by ","; "+n" at the end for n more

    @property
    def messages(self) -> int:
        """How many message numbers the file covers, including those that a session skipped."""
        return self.next - self.first

    def may_hold(self, session: str) -> bool:
        """Whether the file may hold messages of a session; True if the line omits some sessions."""
        names = self.sessions.split(",")
        return session in names or not names[-1] or names[-1].startswith("+")

    def describes(self, other: "Rolled") -> bool:
        """Whether both lines describe the same content, regardless of when each was rolled."""
        return self._replace(at_ns=0) == other._replace(at_ns=0)


class Archived(NamedTuple):
    """Manifest line of a rolled file that was truncated to 0 bytes; the empty file is kept."""

    file: Position
    at_ns: int
    reason: str
    by: int = 0  # index of the instruction that decided it; 0 if none did


class Quarantined(NamedTuple):
    """Manifest line of a file whose bytes from `offset` on were set aside as damaged."""

    file: Position
    offset: int
    at_ns: int
    reason: str


Entry = LogIdentity | Rolled | Archived | Quarantined
_ENTRIES: Final[dict[str, type[Entry]]] = {
    "log": LogIdentity,
    "rolled": Rolled,
    "archived": Archived,
    "quarantined": Quarantined,
}
_OMITTED: Final = frozenset({"by", "digest", "sessions"})  # left out of a line if empty
_SESSIONS_BYTES_MAX: Final = 1024  # bytes of session names in a line: a quarter of the line's limit
_WORDS: Final = {entry: word for word, entry in _ENTRIES.items()}
# For each kind: the defaults, a function that takes the values from a line, and their types.
_FIELDS: Final[dict[type[Entry], tuple[dict[str, Any], Callable[[Any], Any], tuple[type, ...]]]] = {
    entry: (
        entry._field_defaults, itemgetter(*entry._fields), tuple(entry.__annotations__.values())
    )
    for entry in _WORDS
}  # fmt: skip
_file_of: Final = itemgetter(0)  # returns the file of a rolled or archived line
_SECTOR_BYTES: Final = 512  # disks write a sector whole or not at all
_HOLE: Final = b"\0\0"
_SEAL_BYTES: Final = 9  # a space and 8 hexadecimal digits
# bytes decoded at a time; much larger blocks would not fit the cache
_BLOCK_BYTES: Final = 256 << 10
# Rolled and archived lines, exactly as `encode_entry` writes them.
_NUMBER: Final = "(0|-?[1-9][0-9]{0,18})"
_TEXT: Final = r'"([^"\\\x00-\x1f]*)"'
_FILE: Final = r'"log\.(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,4})"'
_SEAL: Final = "[}] [0-9a-f]{8}(?=\n)"
_ROLLED: Final = re.compile(
    f'\n{{"rt":{FORMAT},"what":"rolled","file":{_FILE},"end":{_NUMBER},'
    f'"first":{_NUMBER},"next":{_NUMBER},"first_time_ns":{_NUMBER},"last_time_ns":{_NUMBER},'
    f'"at_ns":{_NUMBER}(?:,"digest":{_TEXT})?(?:,"sessions":{_TEXT})?{_SEAL}'
).findall
_ARCHIVED: Final = re.compile(
    f'\n{{"rt":{FORMAT},"what":"archived","file":{_FILE},"at_ns":{_NUMBER},"reason":{_TEXT}'
    f'(?:,"by":{_NUMBER})?{_SEAL}'
).findall
_new_rolled: Final[Callable[[tuple[object, ...]], Rolled]] = partial(tuple.__new__, Rolled)
_new_archived: Final[Callable[[tuple[object, ...]], Archived]] = partial(tuple.__new__, Archived)
_new_position: Final[Callable[[int], Position]] = partial(int.__new__, Position)


def session_list(sessions: Collection[str]) -> str:
    """Return names for a `Rolled` line: sorted, as many as fit.

    >>> session_list({"lga", "jfk"})
    'jfk,lga'
    """
    names = sorted(sessions)
    shown = ",".join(names)
    while len(shown) > _SESSIONS_BYTES_MAX:
        names = names[: len(names) * _SESSIONS_BYTES_MAX // len(shown)]
        shown = ",".join(names)
    left = len(sessions) - len(names)
    return f"{shown},+{left}" if left else shown


def encode_entry(entry: Entry) -> bytes:
    """Return one line: a JSON object, a space, its CRC-32 as 8 hexadecimal digits, a newline."""
    said = {name: value for name, value in entry._asdict().items() if value or name not in _OMITTED}
    fields: dict[str, Any] = {"rt": FORMAT, "what": _WORDS[type(entry)], **said}
    if "file" in fields:
        fields["file"] = fields["file"].file_name
    text = json.dumps(fields, separators=(",", ":")).encode()
    if len(text) + 9 > MANIFEST_LINE_BYTES_MAX:
        raise ManifestError("a line would be longer than readers accept")
    return b"%s %08x\n" % (text, crc32(text))


def decode_entry(line: bytes) -> Entry:
    """Decode a line without its newline; `ManifestError` says what is wrong with it."""
    if len(line) > MANIFEST_LINE_BYTES_MAX:
        raise ManifestError("a line is longer than any we write")
    text, _, seal = line.rpartition(b" ")
    if seal != b"%08x" % crc32(text):
        raise ManifestError("a line's CRC does not match")
    try:
        return _entry(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ManifestError(f"a line does not say what it should: {error}") from None


def _torn_at(data: bytes, offset: int) -> int:
    """Return the offset where a write torn by a power cut begins; the data's end if none was.

    An unwritten sector reads as zeros up to its end. No line contains two zero bytes in a row, and
    no single bit flip produces them. Each write is synced before the next one, so zeros
    followed by a whole line are damage, not a torn write.
    """
    hole = data.find(_HOLE)
    end = len(data) - len(data[hole:].lstrip(b"\0"))
    is_torn = end == len(data) or not (offset + end) % _SECTOR_BYTES
    if not is_torn or any(map(_is_whole, data[end:].split(b"\n")[1:-1])):
        return len(data)
    return data.rfind(b"\n", 0, hole) + 1


def _is_whole(line: bytes) -> bool:
    text, _, seal = line.rpartition(b" ")
    return seal == b"%08x" % crc32(text)


def read_block(data: bytes) -> tuple[list[Rolled], list[Archived]] | None:
    """Decode whole lines in bulk if all are rolled or archived lines in our exact spelling.

    Returns None if any line must go through `decode_entry`, because it is of another kind, spelled
    differently or damaged. This takes a third of the time, which matters with 100,000 files.
    """
    lines = data.split(b"\n")
    lines.pop()
    seals = pack(f">{len(lines)}I", *[crc32(line[:-_SEAL_BYTES]) for line in lines])
    try:
        if unhexlify(b"".join([line[1 - _SEAL_BYTES :] for line in lines])) != seals:
            return None
        text = "\n" + data.decode()
    except ValueError:
        return None
    # A match begins with its only newline and is followed by another, so it is a whole line.
    rolled, archived = _ROLLED(text), _ARCHIVED(text)
    known = len(rolled) + len(archived) == len(lines)
    if not known or max(map(len, lines)) > MANIFEST_LINE_BYTES_MAX:
        return None
    return _rolled(rolled), _archived(archived)


# By columns, so that `map` and `zip` run the loops.
def _rolled(found: list[tuple[str, ...]]) -> list[Rolled]:
    if not found:
        return []
    runs, rolls, ends, *numbers, digests, sessions = zip(*found, strict=True)
    sizes = [*map(int, ends)]
    _check_end(min(sizes))
    _check_end(max(sizes))
    columns = _files(runs, rolls), sizes, *(map(int, each) for each in numbers), digests, sessions
    return [*map(_new_rolled, zip(*columns, strict=True))]


def _archived(found: list[tuple[str, ...]]) -> list[Archived]:
    if not found:
        return []
    runs, rolls, times, reasons, by = zip(*found, strict=True)
    columns = _files(runs, rolls), map(int, times), reasons, [int(each or 0) for each in by]
    return [*map(_new_archived, zip(*columns, strict=True))]


def _files(runs: Iterable[str], rolls: Iterable[str]) -> list[Position]:
    places = [*map(int, runs)], [*map(int, rolls)]
    if max(places[0]) >= RUN_END or max(places[1]) >= ROLL_END:
        raise ManifestError("a line has an impossible file name")
    return [
        _new_position((run << ROLL_BITS | roll) << OFFSET_BITS)
        for run, roll in zip(*places, strict=True)
    ]


def _check_end(end: int) -> None:
    if not 0 <= end <= FILE_BYTES_MAX:
        raise ManifestError(f"a file cannot end at {end}")


def _entry(fields: dict[str, Any]) -> Entry:
    if fields["rt"] != FORMAT:
        raise ManifestError("a line is of another version of the format")
    kind = _ENTRIES[fields["what"]]
    said, values, types = _FIELDS[kind]
    said = said | fields
    if "file" in said:
        said["file"] = file_position(said["file"])
    if len(said) != len(types) + 2:
        raise ManifestError(f"a {_WORDS[kind]} line has an unknown field")
    entry: Entry = tuple.__new__(kind, values(said))
    if (*map(type, entry),) != types:
        raise ManifestError(f"a {_WORDS[kind]} line has a field of another type")
    # interned, because a node holds one for each of its sessions
    if isinstance(entry, LogIdentity):
        return LogIdentity._make(intern(each) if isinstance(each, str) else each for each in entry)
    if isinstance(entry, Rolled):
        _check_end(entry.end)
    return entry


# Empty defaults that all manifests share and never change; a first line replaces them. Most
# sessions on a node have no such lines.
_NO_ROLLED: Final[dict[Position, Rolled]] = {}
_NO_ARCHIVED: Final[dict[Position, Archived]] = {}
_NO_ORDER: Final[list[Position]] = []


@dataclass(slots=True)
class Manifest:
    """The facts of all manifest lines read so far; feed it the file's bytes as they arrive."""

    identity: LogIdentity | None = None
    rolled: dict[Position, Rolled] = field(default_factory=lambda: _NO_ROLLED)
    archived: dict[Position, Archived] = field(default_factory=lambda: _NO_ARCHIVED)
    length: int = 0  # bytes of whole lines taken
    order: list[Position] = field(default_factory=lambda: _NO_ORDER)  # the rolled files

    def feed(self, data: bytes) -> int:
        """Take the whole lines at the start of `data`; return how many bytes were taken.

        A last line without its newline is left for the next call, since it may still be growing.
        Lines torn by a power cut are left as well, until the log's owner cuts them off.

        Raises:
            ManifestError: a line is damaged, or contradicts an earlier one.
        """
        if _HOLE in data:
            data = data[: _torn_at(data, self.length)]
        taken = data.rfind(b"\n") + 1
        begin = 0 if self.identity else data.find(b"\n") + 1  # the first line identifies the log
        self._take(data[:begin])
        while begin < taken:
            end = data.rfind(b"\n", begin, begin + _BLOCK_BYTES) + 1 or taken
            if not self._take_many(data[begin:end]):
                self._take(data[begin:end])
            begin = end
        if len(data) - taken > MANIFEST_LINE_BYTES_MAX:
            raise ManifestError("a line is longer than any we write")
        self.length += taken
        return taken

    def add(self, entry: Entry) -> None:
        """Add a line's fact; `ManifestError` if it contradicts an earlier line."""
        self.check(entry)
        if isinstance(entry, Rolled):
            if entry.file not in self.rolled:
                self._own()
                self.rolled[entry.file] = entry
                self.order.append(entry.file)
        elif isinstance(entry, Archived):
            self._own()
            self.archived[entry.file] = entry
        elif isinstance(entry, LogIdentity):
            self.identity = entry

    def check(self, entry: Entry) -> None:
        """Raise `ManifestError` if a fact contradicts an earlier one; adds nothing."""
        if isinstance(entry, LogIdentity):
            if self.identity not in (None, entry):
                raise ManifestError("it names two logs")
        elif self.identity is None:
            raise ManifestError("its first line does not name the log")
        elif isinstance(entry, Rolled):
            file = entry[0]
            known = self.rolled.get(file)
            if known is None:
                if self.order and file < self.order[-1]:
                    raise ManifestError(f"it rolls {file.file_name} out of order")
            elif known != entry:
                raise ManifestError(f"it rolls {file.file_name} twice")

    def _own(self) -> None:
        if self.rolled is _NO_ROLLED:
            self.rolled, self.archived, self.order = {}, {}, []

    def _take(self, data: bytes) -> None:
        for line in data.split(b"\n")[:-1]:
            self.add(decode_entry(line))

    def _take_many(self, data: bytes) -> bool:
        """Take lines in bulk; False, with nothing taken, if they have to be decoded one by one."""
        rolled, archived = read_block(data) or ([], [])
        files = [*map(_file_of, rolled)]
        in_order = all(map(lt, files, files[1:])) and (self.order[-1:] < files[:1] or not files)
        if self.identity is None or not in_order:
            return False
        self._own()
        self.rolled.update(zip(files, rolled, strict=True))
        self.order += files
        self.archived.update(zip(map(_file_of, archived), archived, strict=True))
        return bool(rolled or archived)

    def successor(self, file: Position) -> Position | None:
        """The next rolled file after `file`; None if no later file was rolled yet."""
        place = bisect_right(self.order, file)
        return self.order[place] if place < len(self.order) else None

    def frames_end(self, position: Position) -> Position:
        """Where the last frame before a position ends, in the same file or an older one."""
        if position.offset:
            return position
        ended = (file for file in reversed(self.order) if file < position)
        filled = (file + self.rolled[file].end for file in ended if self.rolled[file].end)
        return Position(next(filled, 0))

    def rolled_end(self, file: Position) -> int | None:
        """The offset where a rolled file ends; None while it is active."""
        rolled = self.rolled.get(file)
        return None if rolled is None else rolled.end

"""Ledger: the state after n instructions; the same on every node, and all a snapshot holds."""

import json
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from rt.errors import Misuse
from rt.format.frame import HEADER_BYTES, position_in
from rt.format.ranges import EMPTY_DIGEST, Range
from rt.position import FILE_BYTES_MAX, START, Position
from sequencer.instruction import Slice

_VERSION: Final = 1
NOTES_MAX: Final = 128


_TAIL_DIGEST_BYTES: Final = 8  # against accidents; a hostile publisher harms only its own session


class Tail(NamedTuple):
    """The last frame of a session that was merged; a copy with another one is another copy."""

    position: Position
    digest: bytes

    def is_of(self, header: bytes | None) -> bool:
        """Whether a raw header, if there is one, is that of this frame."""
        return header is not None and _digest_of(header) == self.digest


@dataclass(slots=True)
class GrowingFile:
    """What the file of the merged log that still grows holds.

    Attributes:
        since_ns: merge time of its first range; 0 if it is empty.
        sessions: whose messages it holds.
    """

    since_ns: int = 0
    sessions: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Ledger:
    """How far each session was merged, and where the merged log ends.

    Attributes:
        file_bytes_max: a merged file rolls before it would exceed this.
        index: the last instruction that was executed.
        sessions: per session, where it is merged up to.
        tails: per session, the last frame that was merged, if it was read.
        watermarks: per session or group, the number below which a message is a repeat.
        end: where the merged log ends.
        number: the number of the next message.
        time_ns: the last merge time; never goes back.
        digest: the running digest of the merged log, 16 bytes.
        active: the file that still grows.
        archived_to: the files before it are archived.
        notes: texts by name, such as the archiver's policy; replaced whole, since views of the
            node refer to it.
    """

    file_bytes_max: int = FILE_BYTES_MAX
    index: int = 0
    sessions: dict[str, Position] = field(default_factory=dict)
    tails: dict[str, Tail] = field(default_factory=dict)
    watermarks: dict[str, int] = field(default_factory=dict)
    end: Position = START
    number: int = 0
    time_ns: int = 0
    digest: bytes = EMPTY_DIGEST
    active: GrowingFile = field(default_factory=GrowingFile)
    archived_to: Position = START
    notes: dict[str, str] = field(default_factory=dict)

    def merged_to(self, session: str) -> Position:
        """Where a session is merged up to."""
        return self.sessions.get(session, START)

    def watermark(self, name: str) -> int:
        """The number below which a message of this session or group is a repeat."""
        return self.watermarks.get(name, 0)

    def accepts(self, each: Slice) -> bool:
        """Whether a slice was planned on this state."""
        return (
            self.merged_to(each.session) == each.after
            and self.watermark(each.watermark_name) == each.watermark
        )

    @property
    def active_since_ns(self) -> int:
        """Merge time of the first range in the active file; 0 if it is empty."""
        return self.active.since_ns

    def needs_roll(self, size: int) -> bool:
        """Whether a range of `size` bytes, range frame included, belongs in the next file."""
        offset = self.end.offset
        return offset > 0 and offset + size > self.file_bytes_max

    def roll(self) -> None:
        """End the active file; the next range begins a new one."""
        self.end = self.end.next_file()
        self.active = GrowingFile()

    def range_of(self, each: Slice, term: int, time_ns: int) -> Range:
        """Return the range that a slice becomes, with its digest yet to be set."""
        return Range(
            self.index, term, max(time_ns, self.time_ns), each.session, each.first, each.length,
            self.number, each.messages - each.skip, each.skip,
        )  # fmt: skip

    def take(self, each: Slice, merged: Range, size: int, headers: bytes) -> None:
        """Record that a slice was appended to the merged log.

        Args:
            each: the slice.
            merged: the range it became.
            size: bytes of the range, range frame included.
            headers: the raw headers of its frames.
        """
        self.pass_over(each)
        last = headers[-HEADER_BYTES:]
        self.tails[each.session] = Tail(position_in(last), _digest_of(last))
        self.end = Position(self.end + size)
        self.number += merged.messages
        self.time_ns = merged.time_ns
        self.digest = merged.digest
        self.active.since_ns = self.active.since_ns or merged.time_ns
        self.active.sessions.add(each.session)

    def pass_over(self, each: Slice) -> None:
        """Record a slice of which nothing was appended: it held nothing but repeats."""
        self.sessions[each.session] = each.end
        self.tails.pop(each.session, None)  # its frames are read by the leader only
        self.watermarks[each.watermark_name] = each.next_sequence

    def archives(self, file: Position) -> bool:
        """Whether a file may be archived now: it is rolled and not archived yet."""
        return self.archived_to <= file < self.end.file

    def note(self, name: str, text: str) -> None:
        """Store a text, or delete an empty one; names beyond the limit are left out."""
        if not text:
            self.notes = {each: known for each, known in self.notes.items() if each != name}
        elif name in self.notes or len(self.notes) < NOTES_MAX:
            self.notes = {**self.notes, name: text}

    def encode(self) -> bytes:
        """Return the state as bytes, the same bytes for the same state."""
        fields: dict[str, Any] = {
            "version": _VERSION,
            "file_bytes_max": self.file_bytes_max,
            "index": self.index,
            "sessions": {name: int(end) for name, end in sorted(self.sessions.items())},
            "tails": {
                name: [int(tail.position), tail.digest.hex()]
                for name, tail in sorted(self.tails.items())
            },
            "watermarks": dict(sorted(self.watermarks.items())),
            "end": int(self.end),
            "number": self.number,
            "time_ns": self.time_ns,
            "digest": self.digest.hex(),
            "active_since_ns": self.active.since_ns,
            "active_sessions": sorted(self.active.sessions),
            "archived_to": int(self.archived_to),
            "notes": dict(sorted(self.notes.items())),
        }
        return json.dumps(fields, separators=(",", ":")).encode()


def decode_ledger(data: bytes) -> Ledger:
    """Read the bytes of `Ledger.encode`; `Misuse` if they are something else."""
    try:
        fields = json.loads(data)
        if fields.pop("version") != _VERSION:
            raise Misuse("the snapshot was written by another version of rt; use that one")
        fields["sessions"] = {name: Position(end) for name, end in fields["sessions"].items()}
        fields["end"] = Position(fields["end"])
        fields["tails"] = {
            name: Tail(Position(place), bytes.fromhex(digest))
            for name, (place, digest) in fields.get("tails", {}).items()
        }
        fields["active"] = GrowingFile(
            fields.pop("active_since_ns", 0), set(fields.pop("active_sessions", ()))
        )
        fields["archived_to"] = Position(fields.get("archived_to", START))
        fields["digest"] = bytes.fromhex(fields["digest"])
        return Ledger(**fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Misuse(f"the snapshot does not hold a ledger: {error}") from None


def _digest_of(header: bytes) -> bytes:
    return blake2b(header, digest_size=_TAIL_DIGEST_BYTES).digest()

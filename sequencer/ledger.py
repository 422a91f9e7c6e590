"""Ledger: the state after n instructions; the same on every node, and all a snapshot holds."""

import json
from dataclasses import dataclass, field
from typing import Any, Final

from rt.errors import Misuse
from rt.format.ranges import EMPTY_DIGEST, Range
from rt.position import FILE_BYTES_MAX, START, Position
from sequencer.instruction import Slice

_VERSION: Final = 1
NOTES_MAX: Final = 128


@dataclass(slots=True)
class Ledger:
    """How far each session was merged, and where the merged log ends.

    Attributes:
        index: of the last instruction that was executed.
        sessions: per session, where it is merged up to.
        watermarks: per session or group, the number below which a message is a repeat.
        end: of the merged log.
        number: the next message gets it.
        time_ns: the last merge time; never goes back.
        digest: the running digest of the merged log, 16 bytes.
        file_bytes_max: a merged file rolls before it would pass this.
        active_since_ns: merge time of the first range in the active file; 0 if it is empty.
        active_sessions: whose messages the active file holds.
        archived_to: the files before it are archived.
        notes: texts by name, such as the archiver's policy.
    """

    file_bytes_max: int = FILE_BYTES_MAX
    index: int = 0
    sessions: dict[str, Position] = field(default_factory=dict)
    watermarks: dict[str, int] = field(default_factory=dict)
    end: Position = START
    number: int = 0
    time_ns: int = 0
    digest: bytes = EMPTY_DIGEST
    active_since_ns: int = 0
    active_sessions: set[str] = field(default_factory=set)
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

    def needs_roll(self, size: int) -> bool:
        """Whether a range of `size` bytes, range frame included, goes into the next file."""
        offset = self.end.offset
        return offset > 0 and offset + size > self.file_bytes_max

    def roll(self) -> None:
        """The active file was ended; the next range begins a new one."""
        self.end = self.end.next_file()
        self.active_since_ns = 0
        self.active_sessions.clear()

    def range_of(self, each: Slice, term: int, time_ns: int) -> Range:
        """Return the range that a slice becomes, its digest yet to be set."""
        return Range(
            self.index, term, max(time_ns, self.time_ns), each.session, each.first, each.length,
            self.number, each.messages - each.skip, each.skip,
        )  # fmt: skip

    def take(self, each: Slice, merged: Range, size: int) -> None:
        """A slice was appended to the merged log as `merged`, in `size` bytes."""
        self.pass_over(each)
        self.end = Position(self.end + size)
        self.number += merged.messages
        self.time_ns = merged.time_ns
        self.digest = merged.digest
        self.active_since_ns = self.active_since_ns or merged.time_ns
        self.active_sessions.add(each.session)

    def pass_over(self, each: Slice) -> None:
        """A slice that held nothing but repeats was seen; nothing was appended."""
        self.sessions[each.session] = each.end
        self.watermarks[each.watermark_name] = each.next_sequence

    def archives(self, file: Position) -> bool:
        """Whether a file may be archived now: it is rolled, and was not archived yet."""
        return self.archived_to <= file < self.end.file

    def note(self, name: str, text: str) -> None:
        """Remember a text, or forget it where it is empty; more names than may be are refused."""
        if not text:
            self.notes.pop(name, None)
        elif name in self.notes or len(self.notes) < NOTES_MAX:
            self.notes[name] = text

    def encode(self) -> bytes:
        """Return the state as bytes, the same bytes for the same state."""
        fields: dict[str, Any] = {
            "version": _VERSION,
            "file_bytes_max": self.file_bytes_max,
            "index": self.index,
            "sessions": {name: int(end) for name, end in sorted(self.sessions.items())},
            "watermarks": dict(sorted(self.watermarks.items())),
            "end": int(self.end),
            "number": self.number,
            "time_ns": self.time_ns,
            "digest": self.digest.hex(),
            "active_since_ns": self.active_since_ns,
            "active_sessions": sorted(self.active_sessions),
            "archived_to": int(self.archived_to),
            "notes": dict(sorted(self.notes.items())),
        }
        return json.dumps(fields, separators=(",", ":")).encode()


def decode_ledger(data: bytes) -> Ledger:
    """Read the bytes of `Ledger.encode`; `Misuse` if they are not."""
    try:
        fields = json.loads(data)
        if fields.pop("version") != _VERSION:
            raise Misuse("the snapshot was written by another version of rt; use that one")
        fields["sessions"] = {name: Position(end) for name, end in fields["sessions"].items()}
        fields["end"] = Position(fields["end"])
        fields["active_sessions"] = set(fields.get("active_sessions", ()))
        fields["archived_to"] = Position(fields.get("archived_to", START))
        fields["digest"] = bytes.fromhex(fields["digest"])
        return Ledger(**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Misuse(f"the snapshot is not of a ledger: {error}") from None

"""Ledger: the state after n instructions; the same on every node, and saved in snapshots."""

import json
from dataclasses import dataclass, field
from functools import partial
from sys import intern
from typing import Any, Final, NamedTuple

from rt.errors import Misuse
from rt.events import SessionChange
from rt.format.frame import HEADER_BYTES, position_in
from rt.format.ranges import EMPTY_DIGEST, Range
from rt.position import FILE_BYTES_MAX, START, Position
from sequencer.ledger.instruction import Note, Slice
from sequencer.ledger.life import OWNED, Life
from sequencer.ledger.session_facts import Ownership, Sample, Tail, tail_digest

_VERSION: Final = 1
NOTES_MAX: Final = 128
_BEGUN_MAX: Final = 10_000  # sessions: 1 MB of a snapshot
_RETIRED_MAX: Final = 8  # logs of one session; 3 MB more if every session has as many
_SAMPLES_MAX: Final = 32  # per group; some 60 bytes each in a snapshot
_NUMBERS: Final = (
    "file_bytes_max", "index", "end", "number", "time_ns", "active_since_ns", "archived_to",
)  # fmt: skip
_UNREADABLE: Final = (
    ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip


class MergedEnds(NamedTuple):
    """MergedEnds: the ends of the merged log and of each session's merge after an instruction.

    Attributes:
        instruction: the index of the instruction.
        end: the end of the merged log.
        sessions: merged end by session.
    """

    instruction: int
    end: Position
    sessions: dict[str, Position]


@dataclass(slots=True)
class Ledger:
    """Ledger: how far each session was merged, and where the merged log ends.

    Attributes:
        file_bytes_max: a merged file rolls before it would exceed this.
        index: the last instruction that was executed.
        sessions: merged end by session.
        tails: the last merged frame by session; absent if this node did not read that frame.
        samples: a few messages by group, in order: the first, the last, and some between, sparser
            with age.
        begun: by session, the instruction that last dropped its copies, and the ids of its retired
            logs, which may not be pushed again (latest first, separated by spaces). The dictionary
            is in order of the instructions.
        opened: the ownership of each session that was opened.
        watermarks: per session or group, the number below which a message is a repeat.
        end: where the merged log ends.
        number: the number of the next message.
        time_ns: the last merge time; never goes back.
        digest: the running digest of the merged log, 16 bytes.
        active_since_ns: merge time of the first range in the active file; 0 if it is empty.
        active_sessions: the sessions that have messages in the active file.
        archived_to: files before this position are archived.
        notes: texts by name, such as the archiver's policy; the dictionary is replaced, never
            changed, because the node's views refer to it.
    """

    file_bytes_max: int = FILE_BYTES_MAX
    index: int = 0
    sessions: dict[str, Position] = field(default_factory=dict)
    tails: dict[str, Tail] = field(default_factory=dict)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    begun: dict[str, tuple[int, str]] = field(default_factory=dict)
    opened: dict[str, Ownership] = field(default_factory=dict)
    watermarks: dict[str, int] = field(default_factory=dict)
    end: Position = START
    number: int = 0
    time_ns: int = 0
    digest: bytes = EMPTY_DIGEST
    active_since_ns: int = 0
    active_sessions: set[str] = field(default_factory=set)
    archived_to: Position = START
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def is_new(self) -> bool:
        """Whether nothing was merged yet, and there are no notes."""
        return self.end == START and not self.notes

    @property
    def merged_ends(self) -> MergedEnds:
        """The merged ends as of now, in a copy."""
        return MergedEnds(self.index, self.end, dict(self.sessions))

    def merged_to(self, session: str) -> Position:
        """A session's merged end; `START` if nothing is merged."""
        return self.sessions.get(session, START)

    def watermark(self, name: str) -> int:
        """The number below which a message of this session or group is a repeat."""
        return self.watermarks.get(name, 0)

    def accepts(self, each: Slice) -> bool:
        """Whether a slice was planned on this state."""
        # not by the methods above, for speed: this runs three times per slice
        return (
            self.sessions.get(each.session, START) == each.after
            and self.watermarks.get(each.watermark_name, 0) == each.watermark
        )

    def needs_roll(self, size: int) -> bool:
        """Whether a range of `size` bytes, including the range frame, belongs in the next file."""
        offset = self.end.offset
        return offset > 0 and offset + size > self.file_bytes_max

    def roll(self) -> None:
        """End the active file; the next range begins a new one."""
        self.end = self.end.next_file()
        self.active_since_ns, self.active_sessions = 0, set()

    def range_of(self, each: Slice, term: int, time_ns: int) -> Range:
        """Return the range that a slice becomes; its digest is not set yet."""
        return Range(
            self.index, term, max(time_ns, self.time_ns), each.session, each.first, each.length,
            self.number, each.messages - each.skip, each.skip,
        )  # fmt: skip

    def record_slice(self, each: Slice, merged: Range, size: int, headers: bytes) -> None:
        """Record that a slice was appended to the merged log.

        Args:
            each: the slice.
            merged: the range it became.
            size: bytes of the range, including the range frame.
            headers: the raw headers of its frames.
        """
        session, last = each.session, headers[-HEADER_BYTES:]
        self.sessions[session] = each.end
        self.tails[session] = Tail(position_in(last), tail_digest(last))
        self.watermarks[each.watermark_name] = each.next_sequence
        self._appended(merged, size)

    def _appended(self, merged: Range, size: int) -> None:
        self.end = Position(self.end + size)
        self.number += merged.messages
        self.time_ns = merged.time_ns
        self.digest = merged.digest
        self.active_since_ns = self.active_since_ns or merged.time_ns
        self.active_sessions.add(merged.session)

    def pass_over(self, each: Slice) -> None:
        """Record that a slice is merged; it held no new message, so nothing was appended."""
        self.sessions[each.session] = each.end
        self.tails.pop(each.session, None)  # only the leader has read its frames
        self.watermarks[each.watermark_name] = each.next_sequence

    def changes(self, life: Life) -> bool:
        """Whether a session change was decided on this state and has not been made yet."""
        is_current = self.merged_to(life.session) == life.before
        is_retired = self.is_retired(life.session, life.log)
        if life.change in OWNED:
            known = self.opened.get(life.session)
            is_known = life.since == (0 if known is None else known.since)
            return is_known and (is_current if life.ends_log else not is_retired)
        return is_current and not is_retired

    def outcome(self, life: Life) -> Position:
        """Return the position at which a session continues after a change."""
        is_same = life.change in OWNED and not life.ends_log
        return self.merged_to(life.session) if is_same else life.after

    def change(self, life: Life, merged: Range, size: int) -> None:
        """Record a session change whose event was appended to the merged log.

        Args:
            life: the change.
            merged: the range of its event.
            size: bytes of the event, including the range frame.
        """
        session = life.session
        if life.change not in OWNED:
            self.tails.pop(session, None)
        if life.change is SessionChange.ADOPTED:
            self.sessions[session] = life.after
        if life.ends_log:
            self.begin_again(session, self.index, life.log)
            self.sessions.pop(session, None)
            self.watermarks.pop(session, None)
        self.change_owner(life, self.index, merged.time_ns)
        self._appended(merged, size)

    def change_owner(self, life: Life, index: int, time_ns: int) -> None:
        """Record who owns a session after a change.

        Args:
            life: the change.
            index: its instruction.
            time_ns: merge time of its event.
        """
        session, change = life.session, life.change
        known = self.opened.get(session, Ownership("", "", 0, time_ns))
        if change in {SessionChange.FORGOTTEN, SessionChange.EXPIRED}:
            self.opened.pop(session, None)
        elif change is SessionChange.CLOSED:
            self.opened[session] = known._replace(since=index, closed_ns=time_ns)
        elif change in {SessionChange.OPENED, SessionChange.RESUMED}:
            owner = life.owner or known.owner
            since_ns = 0 if life.owner else time_ns
            self.opened[session] = Ownership(owner, life.log or known.log, index, since_ns)
        elif change is SessionChange.TAKEN:
            log = "" if life.begins_again else known.log
            self.opened[session] = Ownership(life.owner, log, index, time_ns)
        elif change is SessionChange.RESET and session in self.opened:
            self.opened[session] = Ownership(known.owner, "", index, known.closed_ns or time_ns)

    def begin_again(self, session: str, index: int, log: str) -> None:
        """Record that an instruction dropped a session's copies, and retire its log.

        Logs retired earlier stay retired, since their messages were merged under this name too.
        Only the latest sessions are remembered.
        """
        self.tails.pop(session, None)
        _, before = self.begun.pop(session, (0, ""))
        retired = dict.fromkeys([log, *before.split()] if log else before.split())
        self.begun[session] = (index, " ".join([*retired][:_RETIRED_MAX]))
        if len(self.begun) > _BEGUN_MAX:
            del self.begun[next(iter(self.begun))]

    def is_retired(self, session: str, log: str) -> bool:
        """Whether this log of the session may never be pushed again."""
        return log in self.begun.get(session, (0, ""))[1].split()

    def dropped_after(self, index: int) -> list[str]:
        """Return the sessions whose copies were dropped by an instruction after `index`."""
        found = []
        for session, (each, _) in reversed(self.begun.items()):
            if each <= index:
                break
            found.append(session)
        return found

    def sample(self, group: str, found: list[Sample]) -> None:
        """Add later messages to a group's samples, thinning out old ones."""
        known = self.samples.setdefault(group, [])
        known += found
        while len(known) > _SAMPLES_MAX:
            del known[min(range(1, len(known) - 1), key=partial(_gap_without, known))]

    def archives(self, file: Position) -> bool:
        """Whether a file may be archived now: it is rolled and not yet archived."""
        return self.archived_to <= file < self.end.file

    def carry_out(self, note: Note) -> None:
        """Store a note, unless it expects another text than the current one."""
        if note.replaces(self.notes.get(note.name, "")):
            self.set_note(note.name, note.text)

    def set_note(self, name: str, text: str) -> None:
        """Store a text under a name, or ignore it if the name is new and there are too many.

        An empty text deletes the name.
        """
        if not text:
            self.notes = {each: known for each, known in self.notes.items() if each != name}
        elif name in self.notes or len(self.notes) < NOTES_MAX:
            self.notes = {**self.notes, name: text}

    def encode(self) -> bytes:
        """Return the state as bytes; equal states give equal bytes."""
        fields: dict[str, Any] = {
            "version": _VERSION,
            "file_bytes_max": self.file_bytes_max,
            "index": self.index,
            "sessions": {name: int(end) for name, end in sorted(self.sessions.items())},
            "tails": {
                name: [int(tail.position), tail.digest.hex()]
                for name, tail in sorted(self.tails.items())
            },
            "samples": {
                group: [[each.number, each.digest.hex()] for each in samples]
                for group, samples in sorted(self.samples.items())
            },
            "begun": [[name, index, log] for name, (index, log) in self.begun.items()],
            "opened": {name: list(each) for name, each in sorted(self.opened.items())},
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
    """Decode the bytes of `Ledger.encode`; `Misuse` if they are anything else."""
    try:
        fields = json.loads(data)
        if fields.pop("version") != _VERSION:
            raise Misuse("the snapshot was written by another version of rt; use that one")
        _demand_plain(fields)
        sessions, watermarks = fields["sessions"].items(), fields.get("watermarks", {}).items()
        fields["sessions"] = {intern(name): Position(end) for name, end in sessions}
        fields["watermarks"] = {intern(name): number for name, number in watermarks}
        fields["end"] = Position(fields["end"])
        fields["active_sessions"] = set(fields.get("active_sessions", ()))
        fields |= _facts_of_sessions(fields)
        fields["archived_to"] = Position(fields.get("archived_to", START))
        fields["digest"] = bytes.fromhex(fields["digest"])
        return Ledger(**fields)
    except _UNREADABLE as error:
        raise Misuse(f"the snapshot does not hold a ledger: {error}") from None


def _facts_of_sessions(fields: dict[str, Any]) -> dict[str, Any]:
    """Decode the fields about sessions and groups that are not plain numbers."""
    return {
        "tails": {
            intern(name): Tail(Position(place), bytes.fromhex(digest))
            for name, (place, digest) in fields.get("tails", {}).items()
        },
        "samples": {
            group: [Sample(int(number), bytes.fromhex(digest)) for number, digest in each]
            for group, each in fields.get("samples", {}).items()
        },
        "begun": {
            intern(name): (int(index), str(log)) for name, index, log in fields.get("begun", [])
        },
        "opened": {
            intern(name): Ownership(intern(owner), intern(log), int(index), int(closed_ns))
            for name, (owner, log, index, closed_ns) in fields.get("opened", {}).items()
        },
    }


def _gap_without(samples: list[Sample], nth: int) -> float:
    """Return the width of the gap that removing a sample leaves, relative to the sample's age."""
    age = samples[-1].number - samples[nth].number
    return (samples[nth + 1].number - samples[nth - 1].number) / (age + 1)


def _demand_plain(fields: dict[str, Any]) -> None:
    """Raise `ValueError` unless numbers are unsigned 64-bit integers and notes are texts."""
    sessions, watermarks = fields["sessions"].values(), fields.get("watermarks", {}).values()
    named = [fields[each] for each in _NUMBERS if each in fields]
    numbers = [*named, *watermarks, *sessions]
    if not all(type(each) is int and 0 <= each < 1 << 64 for each in numbers):
        raise ValueError("a number that is not whole, or out of range")
    notes = fields.get("notes", {}).items()
    if not all(isinstance(name, str) and isinstance(text, str) for name, text in notes):
        raise ValueError("a note that is not a text")

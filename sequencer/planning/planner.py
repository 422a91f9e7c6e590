"""Planner: plans the next instruction from what a majority holds durably."""

from collections.abc import Callable, Mapping
from typing import Final

from rt.errors import SessionDiverged
from rt.limits import MIB
from rt.log.write.recent_frames import Heading
from rt.position import START, Position
from sequencer.ledger.founded import FOUNDED_NOTE, obstacle
from sequencer.ledger.instruction import SLICES_MAX, Merge, Slice, slice_digest
from sequencer.ledger.ledger import Ledger
from sequencer.ledger.seal import SEALED_NOTE, seal_of
from sequencer.planning.carried import Carrier
from sequencer.planning.group_join_check import join_obstacle
from sequencer.planning.session_log import SessionLog, SessionLogs
from sequencer.planning.session_records import Stuck

# Per session and instruction: 10 ms of copying, the most a flood can delay other sessions.
SLICE_BYTES_MAX: Final = 4 * MIB
# Per instruction: a node executes this much within about 0.1 s.
INSTRUCTION_BYTES_MAX: Final = 32 * MIB


class Planner:
    """Planner: plans the next instruction from what a majority holds durably.

    The plan continues the current ledger, so only one instruction may be in flight.
    """

    def __init__(
        self,
        logs: SessionLogs,
        received: Callable[[str], Position] = lambda _session: START,
        may_carry: Callable[[], bool] = lambda: False,
    ) -> None:
        """Plan from the copies of this node.

        Args:
            logs: the copies.
            received: returns the end of a session's copy here. It need not be durable: bytes are
                planned only if a majority holds them durably, or if the instruction carries them.
            may_carry: returns whether every member can read an instruction that carries bytes.
        """
        self.logs, self.records = logs, logs.records
        self._received = received
        self.carrier = Carrier(logs, received, may_carry)
        self.ready_index = 0  # a new leader may plan once it has executed this instruction
        self.idle: list[str] = []  # sessions in which the last plan found nothing to merge
        self._searching: set[str] = set()  # sessions that the next plan continues to search
        self._turn = 0  # which session comes first next time, so that each gets room

    def readable(
        self,
        agreed: Mapping[str, Position],
        own: Mapping[str, Position],
    ) -> dict[str, Position]:
        """Return, for each session, the end that a majority holds durably and this node can read.

        Args:
            agreed: per session, the end a majority holds durably.
            own: per session, the end this node holds durably.
        """
        found = {}
        for session, end in agreed.items():
            here = own.get(session, START)
            # this node's sync may take longer than the majority's
            if START < here < end and session in self.records.checked:
                here = max(here, self._received(session))
            if here:
                found[session] = min(end, here)
        return found

    def plan(self, ledger: Ledger, durable: Mapping[str, Position], time_ns: int) -> Merge | None:
        """Return the next instruction, or None if there is nothing to merge.

        Up to `SLICES_MAX` sessions with new frames get a slice each, in turn, so a flood delays the
        others by one instruction at most. A group gets one slice, and a stuck session none.

        Args:
            ledger: the state the instruction will be executed on.
            durable: per session, the end a majority holds durably.
            time_ns: the present time, ns since the epoch.

        Raises:
            CorruptLog: the copy of a session on this node is damaged.
            SessionDiverged: the copy lacks the file at which the session continues.
        """
        self.idle = []
        self._searching.clear()
        waiting, merged = list[str](), ledger.sessions
        for name, end in durable.items():
            if end > merged.get(name, START):
                waiting.append(name)
        if not waiting:
            return None
        start = self._turn % len(waiting)
        share = max(INSTRUCTION_BYTES_MAX // min(len(waiting), SLICES_MAX), 1)
        # A range is never split, so a range of a file's size would make its file exceed the limit.
        share = min(share, SLICE_BYTES_MAX, ledger.file_bytes_max // 2)
        slices: list[Slice] = []
        grouped: set[str] = set()
        for name in (waiting[start:] + waiting[:start])[:SLICES_MAX]:
            each = self._slice(ledger, name, durable[name], share)
            if each is None:
                if name not in self._searching:
                    self.idle.append(name)
            # Every slice moves its watermark, so a group gets one slice per instruction.
            elif each.watermark_name not in grouped:
                grouped.add(each.watermark_name)
                slices.append(each)
        self._turn += 1
        return Merge(max(time_ns, ledger.time_ns), tuple(slices)) if slices else None

    def _slice(self, ledger: Ledger, name: str, durable: Position, limit: int) -> Slice | None:
        stuck = self.records.stuck
        stuck.pop(name, None)
        if SEALED_NOTE in ledger.notes:
            seal = seal_of(ledger.notes)
            words = f"session {name!r} is not merged: {seal and seal.refusal}"
            stuck[name] = Stuck(words, is_refused=True, code=SEALED_NOTE)
            return None
        log = self.logs[name]
        known, after = log.manifest, ledger.sessions.get(name, START)
        # In its active file, a session goes on where its merged bytes end.
        is_active = after.offset and after.file not in known.rolled
        first = after if is_active else log.next_place(after)
        if first.file in known.archived:
            # Or it was merged by an instruction that this node has yet to execute.
            stuck[name] = Stuck(
                f"the beginning of session {name!r}, from {after} on, was archived before it was "
                f"merged here; rt session adopt {name} lets it continue with what is there"
            )
            return None
        rolled = None if is_active else known.rolled_end(first.file)
        file_end = durable if durable.file == first.file else first.file
        if rolled is not None:  # other copies may have more of the file, see `SessionDiverged`
            file_end = min(durable, Position(first.file + rolled))
        identity = known.identity
        group, created_ns = (identity.group, identity.created_ns) if identity else ("", 0)
        if FOUNDED_NOTE in ledger.notes and (words := obstacle(ledger, name, group, created_ns)):
            stuck[name] = Stuck(words)
            return None
        watermark = ledger.watermarks.get(f"group {group}" if group else name, 0)
        ends = rolled is not None and file_end == first.file + rolled
        try:
            made = _cut(log, name, group, after, first, file_end, watermark, limit, ends=ends)
        except FileNotFoundError as error:
            # Its publisher was restored from a backup, so its next file continues an earlier one.
            path = log.log.file_path(first.file)
            raise SessionDiverged(path, name, first, "the file is missing") from error
        # Only a new or adopted session has a merged end at the start of a file.
        if made is not None and made.skip and not after.offset:
            return self._joining(ledger, made, durable)
        return made

    def _joining(self, ledger: Ledger, made: Slice, durable: Position) -> Slice | None:
        """Return the first slice of a session that joins a group, if the session may join.

        Return None, and record why the session is stuck, while its messages were not found to be
        those that the group has under the same numbers.
        """
        name, record = made.session, self.records[made.session]
        before = record.searched_to
        stuck = join_obstacle(self.logs, ledger, made, durable)
        if stuck is None:
            return made
        self.records.stuck[name] = stuck
        if record.searched_to != before:
            self._searching.add(name)
        return None


def _cut(  # noqa: PLR0917 - the fields of a slice, in their order
    log: SessionLog,
    name: str,
    group: str,
    after: Position,
    first: Position,
    end: Position,
    watermark: int,
    limit: int,
    *,
    ends: bool,
) -> Slice | None:
    """Return a session's next slice, or None if there is nothing to merge.

    It has about `limit` bytes, but at least one frame. A repeat is a message whose number is
    already merged. Repeats may only come first in a slice, so the slice ends before any repeat that
    follows a new message. Control frames at the end are left for the next slice unless they end the
    file, since a slice of control frames alone would be passed over.
    """
    length = messages = skip = 0
    upcoming, headers = watermark, bytearray()
    found = log.headers(first, end, limit)
    if not (found and found[-1].header.messages):
        found = _whole(log, first, end, limit, found, ends=ends)
    for header, raw in found:
        repeats = min(max(0, upcoming - header.sequence), header.messages)
        if repeats and messages > skip:
            break
        headers += raw
        length += header.size
        messages += header.messages
        skip += repeats
        if header.messages:  # a control frame has no numbers
            upcoming = max(upcoming, header.sequence + header.messages)
    if not length:
        return None
    digest = slice_digest(bytes(headers))
    return Slice(name, after, first, length, messages, skip, watermark, upcoming, group, digest)


def _whole(
    log: SessionLog, first: Position, end: Position, limit: int, found: list[Heading], *, ends: bool
) -> list[Heading]:
    """Return the headers for a slice, given headers `found` that do not end with a message.

    If `found` has no message but more frames follow, return it with the headers of the next `limit`
    bytes. Otherwise return it without the control frames at its end, which are kept only if they
    end the file (`ends` is set and `found` reaches `end`).
    """
    taken = sum(each.header.size for each in found)
    if not any(each.header.messages for each in found) and first + taken < end:
        return found + log.headers(Position(first + taken), end, limit)  # the limit was too low
    if ends and first + taken == end:
        return found
    while found and not found[-1].header.messages:
        found.pop()
    return found

"""Invariants of the merged bytes."""

import json
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import replace
from operator import itemgetter

from archiver.decide import DISK
from archiver.plan import rolled_files
from rt.format.columns import decode_columns
from rt.format.frame import HEADER_BYTES, FrameKind, Header, parse_header
from rt.format.manifest import Manifest
from rt.format.ranges import Range, decode_range
from rt.node.retain.retention import leases_of_notes
from rt.position import START, Position
from sequencer.ledger.instruction import Archive, Slice
from sequencer.ledger.ledger import Ledger
from sequencer.planning.carried import frames_of
from sequencer.raft.consensus import Entry

from .checkers import Violation
from .disk import Directory, Inode, SimDisk
from .owners import Owners
from .publisher import SESSIONS, STREAM, Publisher, headers, payload, source_of

OUT = "out"
BEGIN_NS = 1_357_017_420_000_000_000
CLOCK_DOUBT_NS = 5 * 10**9  # a lease that ends this soon after the latest clock may be over


class Stream:
    """Watches merged logs from outside, and remembers the bytes that were made first.

    Checks: merged bytes and ledgers are the same on all nodes, as far as each has executed; each
    message of a session, or of a group of sessions, is there once and in order, under consecutive
    numbers, at times that never go back; a session is opened before its first message; what is
    merged, and what is called replicated, was durable on a majority; what a node calls durable is
    on its disk; a snapshot names merged bytes that are durable on a majority; inputs are archived
    once their result is durable on a majority, and merged files when that was decided, which is
    once a majority has them durably; a copy may still have some of them after that.
    """

    def __init__(self, majority: int, name: str = STREAM) -> None:
        self._majority, self._name = majority, name
        self.files: dict[Position, bytearray] = {}
        self.end = START
        self.merged: dict[str, Position] = {}
        self.replicated: dict[str, Position] = {}
        self._ledgers: dict[int, Ledger] = {}
        # per node, the instruction up to which everything is durable
        self._has: dict[str, int] = {}
        self._durable: dict[str, dict[str, Position]] = {}
        self._durable_ends: dict[str, Position] = {}
        self._archived_to = START
        self._decided: dict[str, Position] = {}  # merged up to here by whole or half instructions
        self._held: dict[str, dict[str, Position]] = {}  # per log of a session, and node
        self._carried: dict[str, dict[str, Position]] = {}  # the same, carried in entries
        self.logs: dict[str, str] = {}  # per session, the log that is being merged
        self.next_logs: dict[str, str] = {}  # the log that follows its reset
        self._holds: dict[tuple[str, str], Position] = {}  # per node and session, now
        # per session and end of a merged frame, where the frame is, and its header
        self._last_frames: dict[tuple[str, Position], tuple[Position, bytes]] = {}
        self._next: dict[str, int] = {}  # per session or group, the next number
        self._ends: list[tuple[int, Position]] = []  # the end after each instruction, in order
        self._latest_ns = 0  # the latest time of any clock
        self._number = 0
        self._time_ns = 0
        self.begun_again: set[str] = set()  # sessions whose logs can no longer be distinguished
        self.expired: set[str] = set()  # sessions whose publishers have not begun again yet
        self.owners = Owners()
        self.places: list[Position] = []  # positions of all messages in the merged log
        self.ranges = 0
        self.repeats = 0

    def continues(self, other: "Stream", ledger: Ledger, names: Collection[str]) -> None:
        """Begin with what another cluster merged up to a place, with which these nodes begin.

        Raises:
            Violation: the state that they begin with is not that of the bytes.
        """
        for start in sorted(each for each in other.files if each <= ledger.end.file):
            end = ledger.end.offset if start == ledger.end.file else None
            self.files[start] = other.files[start][:end]
            self._read(None, start, bytes(self.files[start]))
        self.end, self._archived_to = ledger.end, ledger.archived_to
        own = {name: end for name, end in ledger.sessions.items() if not SESSIONS[name]}
        told = {name: end for name, end in self.merged.items() if not SESSIONS[name]}
        if (told, self._number) != (own, ledger.number):  # of a group's, repeats are not in the log
            raise Violation(f"{ledger.sessions} is not what was merged: {self.merged}")
        for session, end in ledger.sessions.items():
            self._decided[session] = self.merged[session] = end
            self._held.setdefault(self.logs[session], {}).update(dict.fromkeys(names, end))

    def holds(self, name: str, disk: SimDisk | None, session: str, end: Position, log: str) -> None:
        """Check a node's claim to hold a log of a session durably up to `end`."""
        there = len(disk.durable(f"in/{session}/{end.file_name}")) if disk else end.offset
        if disk and there < end.offset and not self._is_archived(disk, session, end):
            raise Violation(f"{name} holds {session} up to {end}; durable are {there} bytes")
        held = self._held.setdefault(log, {})
        held[name] = max(held.get(name, START), end)
        self._holds[name, session] = end

    def takes(self, name: str, disk: SimDisk, entry: Entry, each: Slice, ledger: Ledger) -> None:
        """Check that the bytes named by an uncommitted entry in a node's log are on its disk.

        Or in the entry, or on a majority, or merged already, so that every node leaves the slice
        out.
        """
        session, end = each.session, each.end
        if each.carried:
            self.carries(name, each)
            return
        if session in self.begun_again:
            return  # a leader that was cut off may still name bytes of the log before the reset
        there = len(disk.durable(f"in/{session}/{end.file_name}"))
        is_over = ledger.merged_to(session) >= end or self._is_archived(disk, session, end)
        if there < end.offset and not is_over:
            self._demand_held(f"named by entry {entry.index} of {name}", session, end)

    def carries(self, name: str, each: Slice) -> None:
        """Record that a node durably has an entry that contains the bytes it names."""
        if frames_of(each) is None:
            raise Violation(f"an entry of {name} carries other bytes of {each.session}")
        log = self.logs[each.session]  # or of the next log, once the reset is executed
        for one in {log, self.next_logs.get(each.session, log)}:
            carried = self._carried.setdefault(one, {})
            carried[name] = max(carried.get(name, START), each.end)

    def loses(self, name: str, session: str) -> None:
        """Record that a node has set its copy of a session aside."""
        self._holds[name, session] = START

    def reports(self, name: str, session: str, end: Position) -> None:
        """Check a node's report to the leader that it has a session durably up to `end`."""
        if end > self._holds.get((name, session), START) and session not in self.begun_again:
            raise Violation(f"{name} tells the leader of {session} {end}, which it does not hold")

    def _is_archived(self, disk: SimDisk, session: str, end: Position) -> bool:
        text = b'"what":"archived","file":"%s"' % end.file_name.encode()
        return text in disk.durable(f"in/{session}/manifest")

    def _demand_held(self, what: str, session: str, end: Position) -> None:
        log = self.logs[session]
        everywhere = *self._held.get(log, {}).items(), *self._carried.get(log, {}).items()
        holders = {name for name, there in everywhere if there >= end}
        # Before the reset, copies of the next log count for the last one, see ADR 11.
        awaits_reset = self.next_logs.get(session, self.logs[session]) != self.logs[session]
        if end == START or awaits_reset:
            return
        if len(holders) < self._majority:
            raise Violation(f"{session} is {what} up to {end}, durable on {sorted(holders)}")

    def confirms(self, name: str, session: str, replicated: Position, merged: Position) -> None:
        """Check what a node tells a publisher about its session's progress."""
        if session in self.begun_again:
            return  # a node may not know yet, and confirm what the last log had
        self._demand_held("replicated", session, replicated)
        if merged > self._decided.get(session, START):
            raise Violation(f"{name} says that {session} is merged up to {merged}")
        self.replicated[session] = max(self.replicated.get(session, START), replicated)

    def demand_own(self, publisher: Publisher, merged: Position) -> None:
        """Check that what was merged up to a place is the publisher's own."""
        if (publisher.name, merged) not in self._last_frames:
            return  # nothing was merged, or the last frames had only repeats
        position, header = self._last_frames[publisher.name, merged]
        try:
            data = publisher.disk.inode(f"{publisher.name}/{position.file_name}").data
        except FileNotFoundError:  # it was restored to before that
            raise Violation(f"{publisher.name} hears {merged}, which it does not have") from None
        if data and data[position.offset : position.offset + HEADER_BYTES] != header:
            raise Violation(f"{publisher.name} hears {merged}, but other bytes were merged there")

    def has(
        self, name: str, disk: SimDisk, ledger: Ledger, rotten: Collection[Position] = ()
    ) -> None:
        """Check that everything up to an instruction is durable in a node's merged log.

        Except for rotten files: one may be set aside while a state is being saved.
        """
        there, end = len(disk.durable(f"{OUT}/{ledger.end.file_name}")), ledger.end
        if there < end.offset and end.file >= self._archived_to and end.file not in rotten:
            raise Violation(f"{name} has the log up to {end}; durable are {there} bytes")
        self._has[name] = max(self._has.get(name, 0), ledger.index)
        self._durable_ends[name] = max(self._durable_ends.get(name, START), end)
        durable = self._durable.setdefault(name, {})
        for session, merged_to in ledger.sessions.items():
            durable[session] = max(durable.get(session, START), merged_to)

    def saves(self, name: str, ledger: Ledger) -> None:
        """Check a snapshot, with which a node forgets the instructions before it."""
        has = sum(index >= ledger.index for index in self._has.values())
        if ledger.index and has < self._majority:
            raise Violation(f"{name} has a snapshot of {ledger.index}; durable: {self._has}")

    def gives_up(self, name: str, session: str, merged_to: Position) -> None:
        """Check that a node may archive what it holds of a session."""
        ends = [durable.get(session, START) for durable in self._durable.values()]
        if sum(end >= merged_to for end in ends) < self._majority:
            raise Violation(f"{name} archives {session} up to {merged_to}, durably merged: {ends}")

    def drops(self, name: str, disk: SimDisk, end: Position) -> None:
        """Check that what was merged of an ended session is durable before its copy is dropped."""
        there = len(disk.durable(f"{OUT}/{end.file_name}"))
        if there < end.offset:
            raise Violation(f"{name} drops a copy; of {end} only {there} bytes are durable")

    # Retention

    def sees_clock(self, now_ns: int) -> None:
        """Record the time of a node's clock."""
        self._latest_ns = max(self._latest_ns, now_ns)

    def archives(self, ledger: Ledger, known: Manifest, archive: Archive) -> None:
        """Check that no reader holds the files about to be archived, unless a disk is full."""
        files = rolled_files(known, ledger.archived_to, ledger.end.file)
        gone = [file for file, reason in archive.files if DISK not in reason]
        for lease in leases_of_notes(ledger.notes):
            held = files[lease.first_held(files, self._latest_ns + CLOCK_DOUBT_NS) :]
            if lost := {file.start for file in held}.intersection(gone):
                raise Violation(f"{lease} holds what is archived: {sorted(map(str, lost))}")

    # Bytes

    def executed(
        self,
        name: str,
        disk: SimDisk,
        ledger: Ledger,
        begin: Position,
        rotten: Collection[Position] = (),
    ) -> None:
        """Check the bytes that a node's instruction appended, from `begin` to the ledger's end.

        After a crash it compares the headers of what is there already: of a rolled file that has
        rotted meanwhile, a body may be damaged.
        """
        is_first = ledger.index not in self._ledgers
        self.knows(name, ledger)
        if is_first:
            self._extend(disk, ledger.index, ledger.end)
            self._ends.append((ledger.index, ledger.end))
            for session, end in ledger.sessions.items():
                self.merged[session] = max(self.merged.get(session, START), end)
                self._demand_held("merged", session, end)
        self.compare(name, disk, begin, ledger.end, rotten)

    def merged_at(self, index: int) -> Position:
        """Return where the merged log ended after an instruction, if it was executed."""
        place = bisect_right(self._ends, index, key=itemgetter(0))
        return self._ends[place - 1][1] if place else START

    def decided(self, ledger: Ledger) -> None:
        """Record that a node has executed an instruction, or as much of it as it could."""
        for session, end in ledger.sessions.items():
            self._decided[session] = max(self._decided.get(session, START), end)

    def knows(self, name: str, ledger: Ledger) -> None:
        """Check a node's state after an instruction."""
        known = self._ledgers.get(ledger.index)
        if known is None:
            self._ledgers[ledger.index] = _copy(ledger)
        elif known != ledger and (state := ledger.encode()) != known.encode():
            raise Violation(f"{name} has another ledger {ledger.index}:\n{state!r}\n{known!r}")
        if ledger.archived_to > self._archived_to:
            self._archived_to = ledger.archived_to
            ends = self._durable_ends.values()
            if sum(end >= self._archived_to for end in ends) < self._majority:
                raise Violation(f"archived to {self._archived_to}, durable up to {list(ends)}")

    def compare(
        self,
        name: str,
        disk: SimDisk,
        begin: Position,
        end: Position,
        rotten: Collection[Position] = (),
    ) -> None:
        """Check that a node's merged bytes between two places equal everyone's, rot left out."""
        begin_file, end_file = begin.file, end.file
        names = _names(disk)
        for file, ours in self.files.items():
            if begin_file <= file <= end_file and file not in rotten:
                first = begin.offset if file == begin_file else 0
                last = end.offset if file == end_file else len(ours)
                theirs = _bytes(names, file)[first:last]
                last = first + len(theirs) if file < self._archived_to else last
                if theirs != ours[first:last]:
                    raise Violation(f"{name} has other bytes in {file.file_name} {first}-{last}")

    def demand_emptied(self, name: str, disk: SimDisk, known: Manifest) -> None:
        """Check that archived files are empty everywhere."""
        names = _names(disk)
        held = [file.file_name for file in known.archived if _bytes(names, file)]
        if held:
            raise Violation(f"{name} still has bytes of {held}, which are archived")

    def _extend(self, disk: SimDisk, index: int, end: Position) -> None:
        start = self.end.file
        while start <= end.file:
            theirs, ours = _bytes(_names(disk), start), self.files.setdefault(start, bytearray())
            new = theirs[len(ours) : end.offset if start == end.file else None]
            self._read(index, Position(start + len(ours)), bytes(new))
            ours += new
            start = start.next_file()
        self.end = end

    # Messages, by a decoder that knows nothing of walks, scans and readers

    def _read(self, index: int | None, position: Position, data: bytes) -> None:
        offset = 0
        while offset < len(data):
            header = parse_header(data, offset)
            body = data[offset + HEADER_BYTES : offset + HEADER_BYTES + header.length]
            if header.kind != FrameKind.RANGE or header.position != position + offset:
                raise Violation(f"there is no range frame at {Position(position + offset)}")
            new = decode_range(header, body)
            offset += header.size
            place = Position(position + offset)
            self._read_range(index, new, place, data[offset : offset + new.length])
            offset += new.length

    def _read_range(self, index: int | None, new: Range, begin: Position, data: bytes) -> None:
        self.ranges += 1
        if not new.messages and not new.skip:
            self._take_event(new, data)
            return
        self.owners.demand_begun(new.session)
        after = self.merged.get(new.session, START)
        if index is None and SESSIONS[new.session]:
            after = new.first  # what was merged in between may have had only repeats
        if new.first != after and (new.first.offset or new.first < after):
            raise Violation(f"{new.session} was merged up to {after}, then from {new.first}")
        if (
            index not in (new.instruction, None)
            or new.number != self._number
            or new.time_ns < self._time_ns
        ):
            raise Violation(f"{new} after number {self._number} at {self._time_ns} in {index}")
        found: list[tuple[int, bytes]] = []
        places: list[Position] = []
        offset = 0
        while offset < len(data):
            header = parse_header(data, offset)
            place = Position(header.position)
            self._last_frames[new.session, Position(place + header.size)] = (
                place, data[offset : offset + HEADER_BYTES],
            )  # fmt: skip
            if header.position != new.first + offset:
                raise Violation(f"{new.session} {header.position} is in the place of another")
            found += _messages(new.session, header, data[offset + HEADER_BYTES :])
            places += [Position(begin + offset + each) for each in range(header.messages)]
            offset += header.size
        self.places += places[new.skip :]
        self.merged[new.session] = Position(new.first + new.length)
        self._number, self._time_ns = self._number + new.messages, new.time_ns
        self._count(new, found)

    def _take_event(self, new: Range, data: bytes) -> None:
        """Take an event of a session."""
        header = parse_header(data)
        event = json.loads(data[HEADER_BYTES : HEADER_BYTES + header.length])
        merged_to = self.merged.get(new.session, START)
        change, is_end = event["event"], self.owners.take(new.session, event)
        if event["before"] != merged_to or event["after"] != (START if is_end else merged_to):
            raise Violation(
                f"{new.session} was merged up to {merged_to}, and has the event {event}"
            )
        if new.number != self._number or new.time_ns < self._time_ns:
            raise Violation(f"{new} after number {self._number} at {self._time_ns}")
        self._time_ns = new.time_ns
        if is_end:
            self._end_log(new.session, change)

    def _end_log(self, session: str, change: str) -> None:
        """Begin a session again with other bytes, from number 0."""
        self.merged.pop(session, None)
        if change == "expired":
            self.expired.add(session)
            self.begun_again.add(session)
        else:
            self.logs[session] = self.next_logs[session]
        if not SESSIONS[session]:
            self._next.pop(source_of(self._name, session), None)
        self.replicated.pop(session, None)
        for place in [place for place in self._last_frames if place[0] == session]:
            del self._last_frames[place]

    def _count(self, new: Range, found: list[tuple[int, bytes]]) -> None:
        source = source_of(self._name, new.session)
        due = self._next.get(source, 0)
        self.repeats += new.skip
        if any(number >= due for number, _ in found[: new.skip]):
            raise Violation(f"{new.session} leaves out what was not there yet: {due} is due")
        for number, text in found[new.skip :]:
            if number != due or text != payload(source, number):
                raise Violation(f"{new.session} has {number} {text!r} where {due} is due")
            due += 1
        if len(found) - new.skip != new.messages:
            raise Violation(f"{new} has {len(found)} messages")
        self._next[source] = due


def _copy(ledger: Ledger) -> Ledger:
    """Return a state that no later instruction changes."""
    return replace(
        ledger,
        sessions=ledger.sessions.copy(),
        tails=ledger.tails.copy(),
        samples={group: known.copy() for group, known in ledger.samples.items()},
        begun=ledger.begun.copy(),
        opened=ledger.opened.copy(),
        watermarks=ledger.watermarks.copy(),
        active_sessions=ledger.active_sessions.copy(),
    )


def _names(disk: SimDisk) -> dict[str, Inode | Directory]:
    """Return the files of the merged log, by name."""
    try:
        return disk.directory(OUT).names
    except NotADirectoryError:
        return {}


def _bytes(names: dict[str, Inode | Directory], file: Position) -> bytearray:
    inode = names.get(file.file_name)
    return inode.data if isinstance(inode, Inode) else bytearray()


def _messages(session: str, header: Header, data: bytes) -> list[tuple[int, bytes]]:
    columns = decode_columns(header, data[: header.length])
    for number, found in enumerate(columns.headers or (), header.sequence):
        if found != headers(session, number):
            raise Violation(f"message {number} of {session} has the headers {found}")
    return [(header.sequence + place, text) for place, text in enumerate(columns.payloads())]

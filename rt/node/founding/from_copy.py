"""Founding: the state and the merged log of an old cluster, from which a new one continues."""

import os
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from rt.errors import CorruptLog, FrameError, Misuse
from rt.events import SessionChange
from rt.format.chain import Chain
from rt.format.frame import HEADER_BYTES, FrameKind, Header, body_matches, seal_header
from rt.format.index import SUFFIX
from rt.format.manifest import FILE_NAME, LogIdentity, encode_entry
from rt.format.ranges import Range
from rt.format.scan import Scan, next_header
from rt.format.session_event import decode_event, is_event
from rt.format.walk import Walk
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import Disk, File
from rt.log.files.listing import log_files
from rt.names import parse_group, parse_session
from rt.node.founding.carried_state import CarriedState
from rt.position import START, Position
from sequencer.ledger.format_level import LEVEL_NOTE, NEWEST, FormatLevel
from sequencer.ledger.founded import CERTIFICATES_NOTE, FOUNDED_NOTE, Founded, grouped
from sequencer.ledger.ledger import Ledger
from sequencer.ledger.life import Life
from sequencer.ledger.seal import SEALED_NOTE
from sequencer.ledger.session_facts import Tail, tail_digest

_ELSEWHERE: Final = "replace the file by that of another copy of this log, and start again"
NO_GROUP: Final = "-"  # in place of a group's name: these sessions are in none
# Notes that hold for one cluster, and not for the one that continues its log.
_OF_ONE_CLUSTER: Final = (CERTIFICATES_NOTE, SEALED_NOTE)
FOUNDING: Final = ".founding"  # appended to the name of a directory until it is whole


@dataclass(frozen=True, slots=True)
class Founding:
    """Founding: the state from which a new cluster continues, as read from a merged log.

    Attributes:
        log: the log.
        ledger: the state. Policy, leases and cursors, which a merged log does not record, come from
            the state that a standby carried, if there is one.
        term: the term of the state's last instruction.
        carried: the fingerprint of the state that a standby carried; "" if there is none.
    """

    log: LogDirectory
    ledger: Ledger
    term: int
    carried: str = ""

    @property
    def stream(self) -> str:
        """The stream that the log holds."""
        identity = self.log.manifest.identity
        return identity.stream if identity else ""

    @property
    def fingerprint(self) -> str:
        """A text of the log's end and digest, and of the carried state; equal for equal content."""
        carried = f" {self.carried}" if self.carried else ""
        return f"{self.ledger.end} {self.ledger.digest.hex()}{carried}"


def read_founding(
    directory: str,
    groups: Sequence[str],
    file_bytes: int,
    carried: CarriedState | None = None,
    *,
    disk: Disk | None = None,
) -> Founding:
    """Read the state that a new cluster can continue from.

    This reads only headers and events, some 100,000 frames a second, and checks their digests;
    `rt.inspect.verify` checks the rest.

    Args:
        directory: directory of a merged log that nothing is writing.
        groups: each as `GROUP=SESSION,SESSION`, since a merged log does not name groups.
        file_bytes: the size in bytes at which the new cluster rolls its files.
        carried: the state that a standby carried, if any; the log must reach that state's end.
        disk: holds the directory; the real one if not given.

    Raises:
        Misuse: the directory is not a merged log, a file is missing, no messages are left, or the
            carried state belongs to another log.
        CorruptLog: the log is damaged.
    """
    log = LogDirectory(directory, disk)
    log.refresh()
    identity = log.manifest.identity
    if identity is None or not log.merged:
        raise Misuse(f"{directory} is not a merged log; name the directory out of a copy")
    named = parse_groups(groups)
    reading = _Reading(log, carried)
    gone = reading.run()
    ledger = reading.ledger
    if not ledger.number and not ledger.index:
        raise Misuse(f"{directory} holds no messages to found a cluster from")
    ledger.file_bytes_max = file_bytes
    if carried is not None:
        _name_groups(ledger, carried, reading.merged, named)
        for name in _OF_ONE_CLUSTER:
            ledger.set_note(name, "")
        return Founding(log, ledger, reading.term, carried.fingerprint)
    ledger.watermarks = grouped(ledger.watermarks, named)
    founded = Founded(
        identity.id, ledger.time_ns, frozenset(named), frozenset(reading.dropped), bool(gone)
    )
    ledger.set_note(FOUNDED_NOTE, founded.text())
    level = FormatLevel(NEWEST, "the founding of the cluster", ledger.time_ns)
    ledger.set_note(LEVEL_NOTE, level.text())
    return Founding(log, ledger, reading.term)


def _name_groups(
    ledger: Ledger, carried: CarriedState, merged: set[str], named: dict[str, frozenset[str]]
) -> None:
    """Turn the sequence numbers of sessions, which the log records, into numbers of their groups.

    If a session began after the carried state, the log does not say which group it is in, if any.
    The groups whose numbers such a session may have advanced must not continue.
    """
    known = {group: frozenset[str]() for group in carried.groups.values()}
    for session, group in carried.groups.items():
        known[group] |= {session}
    for group, sessions in named.items():
        if group != NO_GROUP:
            known[group] = known.get(group, frozenset()) | sessions
    before = carried.state()
    told = frozenset[str]().union(*known.values(), named.get(NO_GROUP, ()))
    unknown = {each for each in merged if each not in before.sessions} - told
    ledger.watermarks = grouped(ledger.watermarks, known)
    if unknown:
        groups = frozenset(named) - {NO_GROUP}
        founded = Founded(carried.log, before.time_ns, groups, frozenset(), is_partial=False)
        known_limits = ledger.notes.get(FOUNDED_NOTE)  # if the old cluster was founded from a log
        ledger.set_note(FOUNDED_NOTE, founded.with_those_of(known_limits).text())


def parse_groups(texts: Sequence[str]) -> dict[str, frozenset[str]]:
    """Parse groups of sessions, each `GROUP=SESSION,SESSION`; `Misuse` says what is wrong.

    >>> parse_groups(["feed=a,b"]) == {"feed": frozenset({"a", "b"})}
    True
    """
    found: dict[str, frozenset[str]] = {}
    seen: set[str] = set()
    for text in texts:
        group, _, names = text.partition("=")
        sessions = frozenset(str(parse_session(name)) for name in names.split(",") if name)
        if not group or group in found or sessions & seen:
            raise Misuse(f"{text!r} is not GROUP=SESSION,SESSION, or names something twice")
        seen |= sessions
        found[group if group == NO_GROUP else parse_group(group)] = sessions
    return found


class _Reading:
    """Rebuilds a ledger from the ranges that a merged log records, or continues a carried one."""

    def __init__(self, log: LogDirectory, carried: CarriedState | None = None) -> None:
        self.ledger = Ledger() if carried is None else carried.state()
        self.term = 0 if carried is None else carried.term
        self.dropped: set[str] = set()
        self.merged: set[str] = set()  # sessions that were read
        self._log = log
        self._chain = Chain(merged=True)
        self._carried = self.ledger.end if carried is not None else None  # its end, until met

    def run(self) -> list[Position]:
        """Read the whole log; return the files that are archived."""
        known = self._log.manifest
        there = set(log_files(self._log.disk, self._log.path))
        starts = sorted(there | set(known.order) | set(known.archived))
        gone = [start for start in starts if start in known.archived]
        begin = gone[-1].next_file() if gone else START
        if gone:
            self._chain.skip(None)
            digest = known.rolled[gone[-1]].digest if gone[-1] in known.rolled else ""
            self._chain.digest = bytes.fromhex(digest) if digest else None
        if self._carried is not None and self._carried < begin:
            words = f"the carried state is of {self._carried}, and the files up to {begin} are gone"
            raise Misuse(f"{words}; use a later state")
        self._meet(begin)
        for start in starts[starts.index(gone[-1]) + 1 if gone else 0 :]:
            if start not in there:
                raise Misuse(f"{self._log.file_path(start)} is missing; restore it first")
            self._read(start, known.rolled_end(start))
            if start in known.rolled and self._carried is not None:
                self._meet(start.next_file())
            elif start in known.rolled:
                self.ledger.end = start.next_file()
                self.ledger.active_since_ns, self.ledger.active_sessions = 0, set()
        if self._chain.faults:
            raise Misuse(f"{self._log.path} is damaged: {self._chain.faults[0]}")
        if self._carried is not None:
            words = f"the carried state is newer than {self._log.path}: it is of {self._carried}"
            raise Misuse(f"{words}; let the copy come to there, or use the state before it")
        self.ledger.archived_to = gone[-1].next_file() if gone else self.ledger.archived_to
        return gone

    def _meet(self, place: Position) -> None:
        """If `place` is the carried state's end, check that log and state have the same digest."""
        if place != self._carried:
            return
        if self._chain.digest not in (None, self.ledger.digest):
            raise Misuse(f"the carried state is not of {self._log.path}: they differ at {place}")
        self._carried = None

    def _read(self, start: Position, rolled_end: int | None) -> None:
        walk, headers = Walk(start, merged=True), list[Header]()
        with closing(self._log.open_file(start)) as file:
            end = file.size() if rolled_end is None else rolled_end
            try:
                while header := next_header(file.pread, walk, end):
                    self._chain.add(header, Position(walk.position - header.size), walk.range)
                    if header.kind == FrameKind.RANGE:
                        headers = []
                        continue
                    headers.append(header)
                    if not walk.at_boundary or walk.range is None:
                        continue
                    if self._carried is None:
                        self._take(walk.range, headers, walk.position, file)
                    else:
                        self._chain.finish()
                        self._meet(walk.position)
                if walk.at_boundary:
                    self._chain.finish()
            except FrameError as error:
                raise CorruptLog(self._log.file_path(start), walk.position, str(error)) from None

    def _take(self, done: Range, headers: list[Header], end: Position, file: File) -> None:
        """Update the ledger by a complete range, which ends at `end`."""
        ledger = self.ledger
        if is_event(done):
            self._change(done, headers[-1], end, file)
        else:
            self._merge(done, headers)
        ledger.index, self.term = done.instruction, done.term
        ledger.end, ledger.number = end, done.number + done.messages
        ledger.time_ns, ledger.digest = done.time_ns, done.digest
        ledger.active_since_ns = ledger.active_since_ns or done.time_ns
        ledger.active_sessions.add(done.session)

    def _merge(self, done: Range, headers: list[Header]) -> None:
        ledger, session = self.ledger, done.session
        self.merged.add(session)
        self.dropped.discard(session)
        ledger.sessions[session] = Position(done.first + done.length)
        last = headers[-1]
        ledger.tails[session] = Tail(Position(last.position), tail_digest(seal_header(last)))
        numbers = [each.sequence + each.messages for each in headers if each.messages]
        ledger.watermarks[session] = max([ledger.watermark(session), *numbers])

    def _change(self, done: Range, header: Header, end: Position, file: File) -> None:
        start, session = Position(end - header.size), done.session
        body = file.pread(header.length, start.offset + HEADER_BYTES)
        if not body_matches(header, body):
            raise FrameError("the body's CRC does not match")
        event = decode_event(header, body, done, start)
        if event is None:
            raise Misuse(f"the event at {start} is of a later version of rt; use that one")
        change = event.change
        after = event.after if change is SessionChange.ADOPTED else START  # it begins again
        begins_again = change is SessionChange.TAKEN and event.after != event.before
        life = Life(
            done.time_ns, change, session, event.before, after, owner=event.owner,
            begins_again=begins_again,
        )  # fmt: skip
        self.ledger.change_owner(life, done.instruction, done.time_ns)
        if life.ends_log:
            self.dropped.add(session)
            self.ledger.tails.pop(session, None)
            self.ledger.sessions.pop(session, None)
            self.ledger.watermarks.pop(session, None)
        elif change is SessionChange.ADOPTED:
            self.ledger.tails.pop(session, None)
            self.ledger.sessions[session] = event.after


def import_log(disk: Disk, founding: Founding, directory: str, identity: LogIdentity) -> None:
    """Copy a founding log durably, under another identity.

    Every frame of the copy is checked. An interrupted copy starts over.

    Args:
        disk: the node's disk.
        founding: what was read from the log.
        directory: the node's merged log; must not exist.
        identity: identity of the new log.

    Raises:
        CorruptLog: a payload of the log is damaged; the headers were checked before.
    """
    partial, source, end = f"{directory}{FOUNDING}", founding.log, founding.ledger.end
    shutil.rmtree(partial, ignore_errors=True)
    disk.make_directory(partial)
    for start in source.files():
        size = source.manifest.rolled_end(start)
        if start <= end.file:
            there = end.offset if size is None else size
            _copy(disk, source, partial, start.file_name, there)
            _demand_whole(disk, source, partial, start, there)
            if size is not None:
                _copy(disk, source, partial, start.file_name + SUFFIX, None)
    with closing(source.disk.open_read(os.path.join(source.path, FILE_NAME))) as lines:
        data = lines.pread(source.manifest.length, 0)
    with closing(disk.open(os.path.join(partial, FILE_NAME), create=True)) as target:
        target.append([encode_entry(identity), data[data.index(b"\n") + 1 :]])
        target.sync()
    disk.replace(partial, directory)


def _copy(disk: Disk, source: LogDirectory, target: str, name: str, size: int | None) -> None:
    """Copy a file, or its first `size` bytes; an index may be missing."""
    try:
        file = source.disk.open_read(os.path.join(source.path, name))
    except FileNotFoundError:
        if size is None:
            return
        raise
    with closing(file), closing(disk.open(os.path.join(target, name), create=True)) as copy:
        copy.copy(file, 0, file.size() if size is None else size)
        copy.sync()


def _demand_whole(
    disk: Disk, source: LogDirectory, target: str, start: Position, size: int
) -> None:
    """Check all frames of a copied file, as a receiver checks what it is sent."""
    with closing(disk.open_read(os.path.join(target, start.file_name))) as copy:
        scan = Scan(copy.pread, Walk(start, merged=True))
        try:
            while scan.next(size) is not None:
                pass
        except FrameError as error:
            path = source.file_path(start)
            raise CorruptLog(path, scan.walk.position, f"{error}; {_ELSEWHERE}") from None
    if scan.walk.position.offset != size:
        raise CorruptLog(source.file_path(start), scan.walk.position, f"it is cut; {_ELSEWHERE}")


def demand_same(founding: Founding, expected: str) -> None:
    """Raise `Misuse` if a log is not the one that the cluster's files were made for."""
    if founding.fingerprint != expected:
        end, actual = expected.partition(" ")[0], founding.ledger.end
        why = f"it ends at {actual}, and not at {end}" if str(actual) != end else "it differs"
        raise Misuse(
            f"{founding.log.path} is not the log that this cluster was founded from: {why}; all "
            "nodes are founded from the same one, which nothing writes meanwhile"
        )

"""ForkWatch: stops merging on a node whose log differs from what a majority agreed on."""

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from rt.errors import CorruptLog, Diverged, FrameError, ManifestError, Refused
from rt.format.frame import HEADER_BYTES, body_matches, parse_header
from rt.format.ranges import Range, decode_range
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import Disk, File
from rt.position import START, Position
from sequencer.member import Member
from sequencer.raft.consensus import Fork

_log: Final = logging.getLogger("rt.node")


@dataclass(frozen=True, slots=True)
class FoundFork:
    """FoundFork: where a node's merged log differs from what the nodes agreed on, and why.

    Attributes:
        since_s: when the fork was found, by the clock of the duties.
        position: where this node's merged log begins to differ.
        reason: what was found.
    """

    since_s: float
    position: Position
    reason: str


class ForkWatch:
    """ForkWatch: stops merging and serving when this node's log differs from the agreed one.

    The node keeps running and keeps its files: only an operator can decide whether messages that
    only this node has are still needed.
    """

    def __init__(self, member: Member, refuse: Callable[[Refused], None]) -> None:
        """Prepare; when a fork is found, call `refuse`, which turns pullers away for good."""
        self.found: FoundFork | None = None
        self._member = member
        self._refuse = refuse

    def stop_for_fork(self, now_s: float, fork: Fork) -> None:
        """Stop merging and serving because the consensus has found a fork."""
        if self.found is None:
            appender = self._member.executor.appender
            self._stop(
                now_s,
                first_range_from(appender.disk, appender.directory, fork.index),
                f"entry {fork.index} is committed here, and is another one in the log of "
                f"{fork.leader}, which leads term {fork.term}",
            )

    def stop_for_difference(self, now_s: float, difference: Diverged) -> None:
        """Stop merging and serving because the merged log here differs from the agreed one."""
        if self.found is None:
            self._stop(now_s, difference.position, difference.reason)

    def _stop(self, now_s: float, position: Position, reason: str) -> None:
        member = self._member
        self.found = FoundFork(now_s, position, reason)
        member.execution.suspended = True
        words = (
            f"FORKED: the merged log of {member.name} is not what the nodes agreed on, from "
            f"{position} on: {reason}. This node merges and serves nothing. Keep a copy of its "
            "merged log if it holds messages that the others lack, then empty the node's directory "
            "and start it again"
        )
        _log.critical("%s", words)
        self._refuse(Refused("forked", words))


def first_range_from(disk: Disk, directory: str, instruction: int) -> Position:
    """Return the position of the first range that this instruction or a later one merged.

    If there is none, return the end of the log's complete ranges; if the log cannot be read, return
    its start. A fork is recent, so the newest files are searched first, each by its index.
    """
    with closing(LogDirectory(directory, disk)) as log:
        try:
            log.refresh()
            place = START
            for start in reversed(log.files()):
                place = _place_in(log, start, instruction)
                if place > start:
                    break
            return place
        except (CorruptLog, ManifestError, OSError) as error:
            _log.warning("where the fork begins cannot be read: %s", error)
            return START


def _place_in(log: LogDirectory, start: Position, instruction: int) -> Position:
    """Return the position of a file's first range that `instruction` or a later one merged.

    If there is none, return the end of the file's complete ranges. The latest ranges may not be
    indexed yet, so the search continues range by range where the index ends.
    """
    index, file = log.open_index(start)
    try:
        with closing(log.open_file(start)) as data:

            def merged_by(offset: int) -> int:
                found = _range_at(data, offset)
                return 0 if found is None else found.instruction

            before = index.count(lambda entry: merged_by(entry.offset) >= instruction)
            offset = index[before - 1].offset if before else 0
            while (found := _range_at(data, offset)) and found.instruction < instruction:
                offset += found.size + found.length
            return Position(start + offset)
    finally:
        if file is not None:
            file.close()


def _range_at(file: File, offset: int) -> Range | None:
    try:
        header = parse_header(file.pread(HEADER_BYTES, offset))
        body = file.pread(header.length, offset + HEADER_BYTES)
        return decode_range(header, body) if body_matches(header, body) else None
    except FrameError:
        return None

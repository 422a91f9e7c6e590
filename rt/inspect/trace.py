"""Trace: finds one message of a session in the session's own log and in merged logs."""

from contextlib import closing
from dataclasses import dataclass
from typing import Final

from rt.errors import Misuse
from rt.format.message import Batch
from rt.inspect.verify import open_log
from rt.log.files.directory import LogDirectory
from rt.log.read.reader import Reader
from rt.log.read.start import at_number, end_of, readable_at
from rt.position import START, Position

# How long before its publish time a message may have been merged, since clocks differ.
_SKEW_NS: Final = 60_000_000_000


@dataclass(frozen=True, slots=True)
class OwnPlace:
    """Where a message is in its session's log.

    Attributes:
        position: the message's position; the position of its file if the file is archived.
        end: a copy of the session that reaches this position includes the message.
        time_ns: when it was published; 0 if its file is archived.
        archived: why its file was archived; "" if it can be read.
    """

    position: Position
    end: Position
    time_ns: int
    archived: str = ""


@dataclass(frozen=True, slots=True)
class MergedPlace:
    """Where a message is in a merged log.

    Attributes:
        position: the message's position in the merged log.
        number: the message's number in the stream.
        instruction: index of the instruction that merged it.
        term: that instruction's term.
        merged_ns: when the instruction was proposed.
        own: where the message is in its session's log.
    """

    position: Position
    number: int
    instruction: int
    term: int
    merged_ns: int
    own: OwnPlace


def find_own(directory: str, sequence: int) -> OwnPlace | None:
    """Return where a message is in a session's log; None if the log does not contain it.

    Raises:
        Misuse: the directory holds no log, or a merged log.
        CorruptLog: damage was found while searching.
    """
    log = _opened(directory, merged=False)
    for file in log.manifest.order:
        line = log.manifest.rolled[file]
        if line.first <= sequence < line.next and log.is_gone(file):
            gone = log.manifest.archived[file]
            return OwnPlace(file, Position(file + line.end), 0, gone.reason or "archived")
    with closing(Reader(log, at_number(log, sequence))) as reader:
        while (found := reader.poll()) is not None:
            if isinstance(found, Batch):
                return _own(found, sequence)
    return None


def find_merged(
    directory: str, session: str, sequence: int, published_ns: int = 0, own: OwnPlace | None = None
) -> MergedPlace | None:
    """Return where a message is in a merged log; None if the log does not contain it.

    If the session was reset, several messages may have the number; the first after `published_ns`
    is returned.

    Args:
        directory: the directory of the merged log.
        session: the session that published the message.
        sequence: the sequence number of the message.
        published_ns: its publish time, if known, so that less has to be read.
        own: its place in the session's log, to exclude other messages with the same number.

    Raises:
        Misuse: the directory holds no log, or a session's log.
        CorruptLog: damage was found while searching.
    """
    log = _opened(directory, merged=True)
    files = log.files()
    since = readable_at(log, published_ns - _SKEW_NS) if published_ns and files else START
    found = _search(log, since, session, sequence, own)
    if found is None and files and since > files[0]:
        found = _search(log, START, session, sequence, own)
    return found


def ends_at(directory: str) -> Position:
    """Return where a log ends now."""
    return end_of(LogDirectory(directory))


def _opened(directory: str, *, merged: bool) -> LogDirectory:
    log = open_log(directory)
    if log.merged != merged:
        kind = "a merged log" if log.merged else "a session's log"
        raise Misuse(f"{directory}: it is {kind}")
    return log


def _own(batch: Batch, sequence: int) -> OwnPlace | None:
    index = sequence - batch.header.sequence
    if not 0 <= index < batch.header.messages:
        return None  # the session skipped this number
    position = Position(batch.header.position + index)
    return OwnPlace(position, Position(position + 1), int(batch.columns.times[index]))


def _search(
    log: LogDirectory, start: Position, session: str, sequence: int, only: OwnPlace | None
) -> MergedPlace | None:
    with closing(Reader(log, start)) as reader:
        while (found := reader.poll()) is not None:
            if not isinstance(found, Batch):
                continue
            if found.session != session:
                reader.skip_range()
                continue
            index = sequence - found.header.sequence
            own, current = _own(found, sequence), reader.range
            if only is not None and own != only:
                continue
            if own is not None and current is not None and index >= found.first:
                number = found.number + index - found.first
                return MergedPlace(
                    Position(found.position + index), number, current.instruction, current.term,
                    current.time_ns, own,
                )  # fmt: skip
    return None

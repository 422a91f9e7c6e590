"""Start: finds where in a log a reader begins, from the manifest, the index and a short read."""

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Literal

from rt.errors import FrameError, Misuse
from rt.events import SessionEvent
from rt.format.frame import HEADER_BYTES, parse_header
from rt.format.index import IndexEntry
from rt.format.message import Batch
from rt.log.files.archived import begins_as_wanted
from rt.log.files.directory import LogDirectory
from rt.log.read.reader import Reader
from rt.log.read.sequence_search import at_sequence
from rt.names import parse_session
from rt.position import START, Position

_LAST: Final = re.compile(r"last:([0-9]{1,18})")
_AT: Final = re.compile(r"at:([0-9]{1,19})")
_SEQUENCE: Final = re.compile(r"sequence:([0-9]{1,19})")


@dataclass(frozen=True, slots=True)
class Last:
    """Start with the last `messages` readable messages of the wanted sessions.

    If all sessions are wanted, messages are counted by number, so skipped numbers count too.
    """

    messages: int

    def __post_init__(self) -> None:
        if self.messages < 0:
            raise Misuse(f"Last({self.messages}) is not a start; use 0 or more messages")


@dataclass(frozen=True, slots=True)
class AtTime:
    """Start at the first message merged (in a session: published) at `ns` or later.

    Merge times never decrease, so an index finds the position. Publish times may decrease, so a
    session's own log is read from its beginning to that position. If the time is in a part of the
    log that was archived, reading begins with the gap.

    Args:
        ns: nanoseconds since the epoch.
    """

    ns: int


@dataclass(frozen=True, slots=True)
class AtSequence:
    """Start at a session's message with this sequence number, or at its next one.

    If that message is in a part of the log that was archived, reading begins with the gap. If no
    such message was published yet, reading begins at the end. A session that was reset uses its
    numbers twice, and the message of either use may be found; for such a session, use a time or a
    position instead.

    Args:
        number: the sequence number, as in `Message.sequence`.
        session: the session's name; "" if the reader chooses exactly one session.
    """

    number: int
    session: str = ""

    def __post_init__(self) -> None:
        if type(self.number) is not int or self.number < 0:
            raise Misuse(f"AtSequence({self.number!r}) is not a start; use a number, 0 or more")
        if self.session:
            parse_session(self.session)

    def of(self, sessions: Collection[str] | None) -> "AtSequence":
        """Return this start with a session: its own, or else the only one in `sessions`.

        Raises:
            Misuse: this start has no session, and `sessions` is not exactly one name.
        """
        if self.session:
            return self
        names = [sessions] if isinstance(sessions, str) else [*(sessions or ())]
        with suppress(Misuse):
            if len(names) == 1:
                return replace(self, session=parse_session(names[0]))
        raise Misuse(
            f"sequence:{self.number} is a number of one session; choose exactly one, by its name"
        )


Start = Literal["earliest", "latest"] | Position | Last | AtTime | AtSequence | datetime


def parse_start(text: str) -> Start:
    """Parse a start as written on a command line.

    The text is `earliest`, `latest`, a position such as `0.0.4096`, `last:100`, `sequence:41`,
    `at:` with nanoseconds, or an ISO 8601 time (UTC if it has no zone). `Misuse` for anything else.

    >>> parse_start("last:100")
    Last(messages=100)
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if match := _LAST.fullmatch(text):
        return Last(int(match[1]))
    if match := _AT.fullmatch(text):
        return AtTime(int(match[1]))
    if match := _SEQUENCE.fullmatch(text):
        return AtSequence(int(match[1]))
    for read in (Position.parse, _parse_time):
        try:
            return read(text)
        except ValueError:
            continue
    raise Misuse(
        f"not a start: {text[:40]!r}; use earliest, latest, a position such as 0.0.4096, last:100, "
        "sequence:41 of one session, or a time such as 2013-01-01T05:17:00Z"
    )


def start_text(start: Start) -> str:
    """Return a start as text that `parse_start` reads, for a request to a node.

    Raises:
        Misuse: the start is a sequence number, which nodes cannot resolve.

    >>> start_text(AtTime(7)), start_text(Position(4096))
    ('at:7', '0.0.4096')
    """
    if isinstance(start, AtSequence):
        raise Misuse(
            f"nodes do not look for sequence numbers such as {start.number}; use a position, a "
            "time or last:100"
        )
    if isinstance(start, Last):
        return f"last:{start.messages}"
    if isinstance(start, AtTime | datetime):
        return f"at:{start.ns if isinstance(start, AtTime) else nanoseconds(start)}"
    return str(start)


def checked_start(start: Start | str, sessions: Collection[str] | None = None) -> Start:
    """Return `start`, parsed if it is text; `Misuse` if it is not a start.

    Args:
        start: the start that a program gave.
        sessions: the names or globs of the sessions that the program reads; None for all.
    """
    if isinstance(start, str):
        start = parse_start(start)
    if isinstance(start, AtSequence):
        return start.of(sessions)
    if isinstance(start, str):
        return start
    if isinstance(start, datetime):
        nanoseconds(start)
    elif not isinstance(start, Position | Last | AtTime):
        raise Misuse(f"not a start: a value of type {type(start).__name__}; use a Position or text")
    return start


def resolve(
    log: LogDirectory, start: Start, wants: Callable[[str], bool] | None = None
) -> Position:
    """Return the position to read from; the first position if the log does not exist yet.

    If a copy lacks the stream's beginning because its source lacked it, `earliest` returns the
    position of that beginning, so that the reader gets a `Gap`.

    Args:
        log: the log.
        start: where to begin.
        wants: returns whether a session's messages count for `Last`; None counts all.

    Raises:
        CorruptLog: Damage was found while searching for the position.
        Misuse: The start is a sequence number without a session, or of another session than the
            log's.
    """
    if isinstance(start, Position):
        return start
    log.refresh()
    if isinstance(start, AtSequence):
        return _at_sequence(log, start)
    if isinstance(start, datetime):
        start = AtTime(nanoseconds(start))
    if isinstance(start, AtTime):
        return _at_time(log, start.ns)
    due = log.due_files() if log.is_there else []
    if not due:
        return _archived_end(log)
    if start == "earliest":
        return due[0] if begins_as_wanted(log.manifest) else log.manifest.order[0]
    end, number = _last(log)
    chooses = wants if log.merged else None
    return end if start == "latest" else _last_wanted(log, due, start.messages, number, chooses)


def _last_wanted(
    log: LogDirectory,
    due: list[Position],
    messages: int,
    number: int,
    wants: Callable[[str], bool] | None,
) -> Position:
    """Return where the last `messages` messages of the wanted sessions, or of all, begin.

    Reads more and more of the log's end until it has found enough; if the wanted sessions have
    published little, it reads the whole log.
    """
    if wants is None:
        return _at_number(log, due, max(0, number - messages))
    back = max(1, messages)
    while True:
        begin = _at_number(log, due, max(0, number - back))
        places = deque[Position](maxlen=max(1, messages))
        with closing(Reader(log, begin)) as reader:
            while (found := reader.poll()) is not None:
                if not isinstance(found, Batch):
                    continue
                if wants(found.session):
                    first = found.first
                    places.extend(Position(found.position + first + n) for n in range(len(found)))
                else:
                    reader.skip_range()
            end = reader.position
        if not messages:
            return end
        if len(places) == messages:
            return places[0]
        if back >= number:
            return places[0] if places else begin
        back *= 4


def readable_at(log: LogDirectory, time_ns: int) -> Position:
    """Return the position of the first readable message at `time_ns` or later.

    Returns the end of the log if there is none. `log` must have been refreshed.
    """
    files = log.files() if log.is_there else []
    if not files:
        return _archived_end(log)
    # a session's times may be in any order, so its index cannot rule out a later match
    if not log.merged:
        return _first(log, files[0], lambda batch: _place_of_time(batch, time_ns))
    later = bisect_left(files, True, key=lambda file: not _begins_before(log, file, time_ns))
    file = files[max(0, later - 1)]
    begin = _indexed(log, file, lambda entry: entry.time_ns >= time_ns)
    return _first(log, begin, lambda batch: _place_of_time(batch, time_ns))


def end_before(log: LogDirectory, time_ns: int) -> Position:
    """Return the end of what was merged (in a session: published) before `time_ns`.

    All messages with earlier times are before that end. In a session whose times are not ordered,
    some messages with later times may be before it. `log` must have been refreshed.
    """
    found = readable_at(log, time_ns)
    if log.merged or not log.is_there:
        return found
    with closing(Reader(log, found)) as reader:
        while (batch := reader.poll()) is not None:
            if isinstance(batch, Batch) and (count := _count_up_to(batch, time_ns)):
                found = Position(batch.position + count)
        return found


def end_of(log: LogDirectory) -> Position:
    """Return where a log now ends, after its last whole frame."""
    return resolve(log, "latest")


def nanoseconds(time: datetime) -> int:
    """Convert `time` to ns since the epoch; `Misuse` if `time` has no zone."""
    if time.tzinfo is None:
        raise Misuse("a start time needs a time zone, for example datetime.now(UTC)")
    whole = time.replace(microsecond=0)
    return int(whole.timestamp()) * 1_000_000_000 + time.microsecond * 1000


def _parse_time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def at_number(log: LogDirectory, number: int) -> Position:
    """Return the position of the message with this number, or of the next readable one.

    Returns the end of the log if there is none. `log` must have been refreshed; in a session's own
    log, numbers are sequence numbers.
    """
    due = log.due_files() if log.is_there else []
    return _at_number(log, due, number) if due else _archived_end(log)


def _at_sequence(log: LogDirectory, start: AtSequence) -> Position:
    """Return the position of a sequence number, or of the gap if its file was archived."""
    order, rolled = log.manifest.order, log.manifest.rolled
    if not (log.is_there and (order or log.files())):
        return START
    if log.merged:
        return at_sequence(log, start.of(None).session, start.number)
    if start.session not in ("", log.session):
        raise Misuse(f"this is the log of session {log.session}, not of {start.session}")
    gone = (file for file in log.unreadable_files() if rolled[file].next > start.number)
    found = at_number(log, start.number)
    return min(found, next(gone, found))


def _at_number(log: LogDirectory, files: list[Position], wanted: int) -> Position:
    rolled = log.manifest.rolled
    done = bisect_left(
        files, True, key=lambda file: file not in rolled or rolled[file].next > wanted
    )
    file = files[min(done, len(files) - 1)]
    if not log.has_file(file):
        return file  # the file is missing, and the wanted message or later ones with it
    begin = _indexed(log, file, lambda entry: entry.number > wanted)
    return _first(log, begin, lambda batch: _place_of_number(batch, wanted))


def _archived_end(log: LogDirectory) -> Position:
    """Return the end of a log that is empty or entirely archived."""
    order = log.manifest.order
    return Position(order[-1] + log.manifest.rolled[order[-1]].end) if order else START


def _at_time(log: LogDirectory, time_ns: int) -> Position:
    """Return the position of a time, or of the gap if its file was archived."""
    found = readable_at(log, time_ns)
    gone = (log.manifest.rolled[file] for file in log.unreadable_files())
    first = next((line.file for line in gone if line.last_time_ns >= time_ns and line.end), found)
    return min(found, first)


def _last(log: LogDirectory) -> tuple[Position, int]:
    """Return where the whole frames of a log end, and the next message's number."""
    order, files = log.manifest.order, log.files()
    number = log.manifest.rolled[order[-1]].next if order else 0
    if not files:
        return _archived_end(log), number
    with closing(Reader(log, _indexed(log, files[-1], lambda _entry: False))) as reader:
        while (found := reader.poll()) is not None:
            if isinstance(found, Batch):
                number = max(number, found.number + len(found))
            elif isinstance(found, SessionEvent):
                number = max(number, found.number)
        return reader.position, number


def _begins_before(log: LogDirectory, start: Position, time_ns: int) -> bool:
    rolled = log.manifest.rolled.get(start)
    if rolled is not None:
        return rolled.first_time_ns < time_ns
    with closing(log.open_file(start)) as file, suppress(FrameError):
        return parse_header(file.pread(HEADER_BYTES, 0)).time_ns < time_ns
    return False  # empty or damaged: start in the file before, and read on to this one


def _indexed(log: LogDirectory, file: Position, is_past: Callable[[IndexEntry], bool]) -> Position:
    with closing(log.open_file(file)) as data:
        return log.walk_before(data, file, is_past).position


def _first(log: LogDirectory, begin: Position, place: Callable[[Batch], int | None]) -> Position:
    """Return the first position that `place` chooses, reading from `begin`; or the log's end.

    `place` returns the index of the chosen message in a batch; None to go on to the next batch.
    """
    with closing(Reader(log, begin)) as reader:
        while (found := reader.poll()) is not None:
            if isinstance(found, Batch) and (index := place(found)) is not None:
                return Position(found.position + index)
        return reader.position


def _place_of_number(batch: Batch, wanted: int) -> int | None:
    if batch.number + len(batch) <= wanted:
        return None
    return batch.first + max(0, wanted - batch.number)


def _count_up_to(batch: Batch, time_ns: int) -> int:
    """Return how many of a batch's messages are needed to include all those before `time_ns`."""
    try:
        times = batch.columns.times
    except FrameError:
        return len(batch)  # count the frame, so that reading meets it
    return next((n for n in range(len(times), batch.first, -1) if times[n - 1] < time_ns), 0)


def _place_of_time(batch: Batch, time_ns: int) -> int | None:
    if batch.merge_time_ns is not None:
        return batch.first if batch.merge_time_ns >= time_ns else None
    try:
        times = batch.columns.times
    except FrameError:
        return batch.first  # start reading here, so that reading meets the frame
    if max(times, default=time_ns - 1) < time_ns:
        return None
    return next(index for index, time in enumerate(times) if time >= time_ns)

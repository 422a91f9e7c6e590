"""SequenceSearch: finds a session's message in a merged log by its sequence number."""

from contextlib import closing

from rt.events import Gap
from rt.format.message import Batch
from rt.log.files.directory import LogDirectory
from rt.log.read.reader import Reader
from rt.position import Position


def at_sequence(log: LogDirectory, session: str, number: int) -> Position:
    """Return the position of a session's message with this sequence number, or of the next one.

    The search goes back through the files that may hold messages of the session, and looks at the
    session's first message in each, until one is early enough. From there it reads forward. So each
    file is read at most twice, and the first time only in small part if the session is busy.

    Args:
        log: a merged log, refreshed and not empty.
        session: the name of the session.
        number: a sequence number of the session.

    Returns:
        The position; the beginning of a gap if the message may be in it; the end of the log if the
        session has not reached the number yet; the oldest file if the log holds nothing of the
        session.

    Raises:
        CorruptLog: Damage was found while searching.
    """
    there, rolled = set(log.files()), log.manifest.rolled
    every = sorted({*there, *rolled})
    files = [each for each in every if each not in rolled or rolled[each].may_hold(session)]
    begin = files[0] if files else every[-1]
    for file in reversed(files):
        first = _first_number(log, file, session) if file in there else None
        if first is not None and first <= number:
            begin = file
            break
    gap: Position | None = None  # of messages that may include the one that is sought
    is_known = False
    with closing(Reader(log, begin)) as reader:
        while (found := reader.poll()) is not None:
            if isinstance(found, Gap):
                gap = gap if gap is not None else found.begin
            elif isinstance(found, Batch) and found.session != session:
                reader.skip_range()
            elif isinstance(found, Batch):
                is_known = True
                index = max(found.first, number - found.header.sequence)
                if index < found.header.messages:
                    is_exact = found.header.sequence + index == number
                    here = Position(found.position + index)
                    return here if gap is None or is_exact else gap
                gap = None
        if gap is None:
            return reader.position if is_known else every[0]
        return gap


def _first_number(log: LogDirectory, file: Position, session: str) -> int | None:
    """Return the number of a session's first message in a file; None if it holds none."""
    with closing(Reader(log, file)) as reader:
        while (found := reader.poll()) is not None:
            if isinstance(found, Gap):
                return None
            if isinstance(found, Batch):
                if found.position.file != file:
                    return None
                if found.session == session:
                    return found.header.sequence + found.first
                reader.skip_range()
    return None

"""Where a merged log was emptied: files that were archived by the others and copied as such."""

from rt.log.write.appender import Appender
from rt.position import START, Position


def end_of_emptied(appender: Appender) -> Position:
    """Where the last archived file of a log ends that is not whole here; the start without one.

    A power cut may bring back a part of a file that a copy was told to empty; it is useless.
    """
    known = appender.manifest
    for file in reversed(known.archived):
        end = file + known.rolled[file].end if file in known.rolled else START
        if end > file and not _is_there(appender, Position(end - 1)):
            return Position(end)
    return START


def _is_there(appender: Appender, position: Position) -> bool:
    try:
        return bool(appender.read(position, 1))
    except FileNotFoundError:
        return False  # folded into the manifest, or never copied

"""Finds the archived prefix of a merged log that was copied from other nodes."""

from rt.log.write.appender import Appender
from rt.position import START, Position


def end_of_emptied(appender: Appender) -> Position:
    """Return the end of the last archived file that is not complete here; `START` if there is none.

    A power cut may bring back part of a file that a copy had emptied; that part is useless.
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

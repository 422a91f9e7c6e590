"""Disagreement: tells a fork from damage if a merged log has a range other than the agreed one."""

import os

from rt.errors import CorruptLog, Diverged, FrameError
from rt.format.frame import HEADER_BYTES, FrameKind, body_matches, parse_header
from rt.log.write.appender import Appender
from rt.position import Position


def disagreement(appender: Appender, position: Position, *, alone: bool) -> CorruptLog:
    """Return the error for a range in the merged log that is not the one agreed on.

    If the range is whole, the error is a fork (`Diverged`). A node writes only ranges that were
    agreed on, so this one was agreed on once, and a majority has lost it since. If the range is not
    whole, or this node is alone, the error is damage (`CorruptLog`).

    Args:
        appender: the merged log's appender.
        position: position of the range frame.
        alone: whether this is the only node, which cannot fork from others.
    """
    path = os.path.join(appender.directory, position.file_name)
    is_fork = not alone and _is_whole(appender, position)
    kind = Diverged if is_fork else CorruptLog
    return kind(path, position, "this is not the range that was agreed on")


def _is_whole(appender: Appender, position: Position) -> bool:
    try:
        header = parse_header(appender.read(position, HEADER_BYTES))
    except FrameError:
        return False
    rest = appender.read(Position(position + HEADER_BYTES), header.size - HEADER_BYTES)
    body, padding = rest[: header.length], rest[header.length :]
    return header.kind == FrameKind.RANGE and body_matches(header, body) and not any(padding)

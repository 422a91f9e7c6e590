"""CursorLag: how much of the merged log follows a position."""

from bisect import bisect_left
from contextlib import closing
from typing import Any

from rt.errors import CorruptLog
from rt.events import Gap
from rt.format.manifest import Manifest
from rt.format.message import Batch
from rt.log.files.directory import LogDirectory
from rt.log.read.reader import Reader
from rt.node.agree.view import NodeView
from rt.position import Position

_NS = 1_000_000_000


def lag_of(log: LogDirectory, position: Position, view: NodeView) -> dict[str, Any]:
    """Return how much follows a position, in messages, bytes and seconds.

    Args:
        log: the merged log.
        position: everything before it is acknowledged.
        view: the node's view, with the end of the log and its number of messages.

    Returns:
        `next` is the position of the first unacknowledged message, or the end of the log if there
        is none. If unacknowledged messages were archived, it is where the archived part begins.
        `messages` and `bytes` are how many follow, without archived ones. `seconds` is how much
        later the last message was merged than the first that follows. The dictionary is empty if
        the log cannot be read there.
    """
    try:
        gap, first = _first_after(log, position)
    except (CorruptLog, OSError):
        return {}
    if first is None or first.position >= view.end:
        return {"next": str(gap or view.end), "messages": 0, "bytes": 0, "seconds": 0.0}
    seconds = max(0.0, (view.time_ns - (first.merge_time_ns or 0)) / _NS)
    return {
        "next": str(gap or Position(first.position + first.first)),
        "messages": max(0, view.number - first.number),
        "bytes": bytes_between(log.manifest, first.position, view.end),
        "seconds": round(seconds, 3),
    }


def _first_after(log: LogDirectory, position: Position) -> tuple[str, Batch | None]:
    """Return where the first gap after a position begins, and the first batch after the position.

    The gap is "" if there is none before the batch; the batch is None if the log has none.
    """
    gap = ""
    log.refresh()
    with closing(Reader(log, position)) as reader:
        while (found := reader.poll()) is not None:
            if isinstance(found, Batch):
                return gap, found
            if isinstance(found, Gap):
                gap = gap or str(found.begin)
    return gap, None


def bytes_between(manifest: Manifest, begin: Position, end: Position) -> int:
    """Return how many bytes of a log are between two positions; the log may grow meanwhile."""
    files = manifest.order[bisect_left(manifest.order, begin.file) :]
    whole = sum(manifest.rolled[file].end for file in files if file < end.file)
    return max(0, whole + end.offset - begin.offset)

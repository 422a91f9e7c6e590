"""Held: reads what a source's log has at the place where a sink's copy ends."""

from collections.abc import Callable
from contextlib import closing, suppress

from replicator.source.source import Held
from replicator.wire.messages import Standing
from rt.format.checksum import crc32
from rt.log.files.directory import LogDirectory
from rt.position import Position


def held_of(log: LogDirectory, standing: Standing, served: Callable[[Position, int], int]) -> Held:
    """Return what a log has at the positions in a Standing.

    A Standing is a sink's report of where its copy ends. The log must have been refreshed. `served`
    takes a file and its size, and returns how many of the file's bytes may be served now.

    Raises:
        CorruptLog: a file to compare is known to be damaged, so a difference would prove nothing.
    """
    end, known = standing.end, log.manifest
    size: int | None = None
    with suppress(FileNotFoundError), closing(log.open_file(end.file)) as file:
        size = served(end.file, file.size())
    rolled = None if standing.rolled is None else known.rolled.get(standing.rolled.file)
    if rolled is not None and served(rolled.file, rolled.end) < rolled.end:
        rolled = None
    archived = end.file in known.archived
    return Held(size, known.rolled_end(end.file), archived, rolled, _crc_of(log, standing))


def _crc_of(log: LogDirectory, standing: Standing) -> int | None:
    """Return this log's CRC-32 over the Standing's spans; None if one of them was archived here."""
    tail = b""
    for span in standing.spans:
        if span.position.file in log.manifest.archived:
            return None
        log.damaged.demand_whole(span.position.file)
        with suppress(FileNotFoundError), closing(log.open_file(span.position.file)) as file:
            tail += file.pread(span.length, span.position.offset)  # else the CRC will differ
    return crc32(tail)

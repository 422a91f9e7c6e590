"""Poison: distinguishes a damaged frame from one that its publisher sealed wrongly."""

import os
from contextlib import closing

from rt.errors import CorruptLog, FrameError, PoisonError
from rt.events import Poisoned
from rt.format.checksum import crc32
from rt.format.columns import check_columns
from rt.format.frame import HEADER_BYTES, FrameKind, parse_header
from rt.spark.reading.pieces import Damage
from rt.spark.reading.storage import open_storage


def corrupt_log(directory: str, found: Damage) -> CorruptLog:
    """Return what to raise for a frame that cannot be read.

    Args:
        directory: of the log, or its URL.
        found: where the frame is, and what is wrong with it.

    Returns:
        A `PoisonError` with session and positions if the frame is as its publisher sealed it, so
        that no copy has another; otherwise a `CorruptLog`.
    """
    at = found.position
    path = f"{directory}/{at.file_name}"
    claimed = None if found.session is None else _sealed_messages(directory, found)
    if claimed is None or found.session is None:
        return CorruptLog(path, at, found.reason)
    return PoisonError(path, Poisoned(found.session, at, found.end, claimed, found.reason))


def _sealed_messages(directory: str, found: Damage) -> int | None:
    """Return how many messages a whole but undecodable frame claims; None for other frames."""
    disk, inside = open_storage(directory)
    at = found.position
    try:
        with closing(disk.open_read(os.path.join(inside, at.file_name))) as file:
            header = parse_header(file.pread(HEADER_BYTES, at.offset))
            body = file.pread(header.length, at.offset + HEADER_BYTES)
    except (FrameError, OSError):
        return None
    if header.kind != FrameKind.MESSAGES or crc32(body) != header.body_crc:
        return None
    try:
        check_columns(header, body)
    except FrameError:
        return header.messages
    return None

"""Poison: distinguishes a damaged frame from one whose publisher sealed wrong contents."""

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
    """Return the error for a frame that cannot be read.

    Args:
        directory: the directory of the log, or its URL.
        found: where the frame is, and what is wrong with it.

    Returns:
        A `PoisonError` with session and positions if the publisher sealed the frame like this, so
        that all copies have it; otherwise a `CorruptLog`.
    """
    at = found.position
    path = f"{directory}/{at.file_name}"
    claimed = None if found.session is None else _sealed_messages(directory, found)
    if claimed is None or found.session is None:
        return CorruptLog(path, at, found.reason)
    return PoisonError(path, Poisoned(found.session, at, found.end, claimed, found.reason))


def _sealed_messages(directory: str, found: Damage) -> int | None:
    """Return how many messages an intact but undecodable frame claims; None for other frames."""
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

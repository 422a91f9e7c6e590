"""Poison: distinguishes a damaged frame from one that its publisher wrote with wrong contents."""

from contextlib import closing, suppress

from rt.errors import CorruptLog, FrameError, PoisonError
from rt.events import Poisoned
from rt.format.checksum import crc32
from rt.format.columns import check_columns
from rt.format.frame import HEADER_BYTES, FrameKind, parse_header
from rt.spark.reading.pieces import Damage
from rt.spark.reading.storage import open_directory


def corrupt_log(directory: str, found: Damage, copies: str = "") -> CorruptLog:
    """Return the error to raise for a frame that cannot be read.

    If the frame's CRC matches its contents, the publisher wrote the frame like this, and all copies
    of the log have it. The error is then a `PoisonError` with the session and the positions;
    otherwise it is a `CorruptLog`.
    """
    at, session = found.position, found.session
    path = f"{directory}/{at.file_name}"
    with suppress(FrameError, OSError), closing(open_directory(directory, copies)) as log:
        log.refresh()
        with closing(log.open_file(at.file)) as file:
            header = parse_header(file.pread(HEADER_BYTES, at.offset))
            body = file.pread(header.length, at.offset + HEADER_BYTES)
        is_whole = header.kind == FrameKind.MESSAGES and crc32(body) == header.body_crc
        if is_whole and session is not None:
            try:
                check_columns(header, body)
            except FrameError:
                event = Poisoned(session, at, found.end, header.messages, found.reason)
                return PoisonError(path, event)
    return CorruptLog(path, at, found.reason)

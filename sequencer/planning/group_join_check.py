"""Joining a group: compares a session that begins below its watermark with what was merged.

Redundant publishers publish the same messages under the same numbers, so messages that the group
has merged are skipped when another session brings them. A session with different messages under
those numbers would lose them, although its publisher would get them confirmed as merged.
"""

from bisect import bisect_left
from hashlib import blake2b
from typing import Final

from rt.errors import CorruptLog, FrameError
from rt.format.columns import decode_columns
from rt.format.frame import HEADER_BYTES, Header, body_matches, parse_header, unpack_body
from rt.format.ranges import Range
from rt.limits import MIB
from rt.log.write.appender import Appender
from rt.position import Position
from sequencer.ledger.instruction import Slice
from sequencer.ledger.ledger import Ledger
from sequencer.ledger.session_facts import Sample
from sequencer.planning.session_log import SessionLog, SessionLogs
from sequencer.planning.session_records import Stuck

_DIGEST_BYTES: Final = 8  # against accidents
_SEARCH_BYTES_MAX: Final = 4 * MIB  # frames whose headers one attempt may read


def new_samples(
    appender: Appender, ledger: Ledger, each: Slice, merged: Range, headers: bytes
) -> list[Sample]:
    """Return the last message that a slice adds to its group, and the first if the group is new.

    Args:
        appender: the merged log's appender, which has written the range.
        ledger: the state before the range.
        each: a slice that adds messages, of a session in a group.
        merged: the range that the slice became.
        headers: the raw headers of its frames.

    Raises:
        CorruptLog: the merged log is damaged there.
    """
    begin, found = ledger.end + merged.size - each.first, []

    def body_at(header: Header) -> bytes:
        position = Position(begin + header.position + HEADER_BYTES)
        body = appender.read(position, header.length)
        if not body_matches(header, body):
            path = f"{appender.directory}/{position.file_name}"
            raise CorruptLog(path, position, "the body is not the one that was agreed on")
        return body

    if each.group not in ledger.samples:
        skip = each.skip
        for offset in range(0, len(headers), HEADER_BYTES):
            header = parse_header(headers, offset)
            if header.messages > skip:
                found.append(_sample(header, body_at(header), skip))
                break
            skip -= header.messages
    for offset in range(len(headers) - HEADER_BYTES, -1, -HEADER_BYTES):
        header = parse_header(headers, offset)
        if header.messages:
            found.append(_sample(header, body_at(header), header.messages - 1))
            break
    kept = [sample for sample in found if sample is not None]
    return kept[:1] if len(kept) > 1 and kept[0].number == kept[1].number else kept


def join_obstacle(
    logs: SessionLogs, ledger: Ledger, each: Slice, durable: Position
) -> Stuck | None:
    """Return why a session's first slice may not be merged, or None if it may.

    Each call reads a part of the session, from where the last call ended.

    Args:
        logs: this node's copies; the session's record says how far it was searched.
        ledger: the state that the slice was planned on.
        each: the first slice of a session, which begins with repeats.
        durable: the end up to which the session may be read.

    Raises:
        CorruptLog: the copy of the session on this node is damaged.
    """
    samples, record = ledger.samples.get(each.group), logs.records[each.session]
    if not samples:
        return None  # no message of the group could be decoded
    if record.refused:
        return Stuck(record.refused, is_refused=True)
    verdict = _compared(logs, samples, each, durable)
    if verdict is None:
        return Stuck(
            f"session {each.session!r} begins below message {each.watermark}, up to which its "
            f"group {each.group!r} is merged; it is merged once it has a message that the "
            "group has as well and that nodes remember, such as the group's last"
        )
    record.searched_to = None
    if not verdict.is_refused:
        return None
    record.refused = verdict.words
    return verdict


def _compared(
    logs: SessionLogs, samples: list[Sample], each: Slice, durable: Position
) -> Stuck | None:
    """Search the next part of a session for a message that its group remembers; compare the two.

    Return None if this part has no such message; the next call searches the next part.
    """
    log, record = logs[each.session], logs.records[each.session]
    place = log.next_place(record.searched_to or each.first)
    rolled = log.manifest.rolled_end(place.file)
    end = durable if durable.file == place.file else place.file
    if rolled is not None:
        end = min(durable, Position(place.file + rolled))
    for header, _ in log.headers(place, end, _SEARCH_BYTES_MAX):
        nth = bisect_left(samples, header.sequence, key=lambda sample: sample.number)
        found = samples[nth] if nth < len(samples) else None
        if header.messages and found and found.number < header.sequence + header.messages:
            mine = _sample(header, _body(log, header), found.number - header.sequence)
            return _verdict(each, found, mine)
        if header.messages and header.sequence >= each.watermark:
            return _verdict(each, samples[-1], None)
        record.searched_to = Position(header.position + header.size)
    return None


def _body(log: SessionLog, header: Header) -> bytes:
    position = Position(header.position)
    body = log.file(position.file).pread(header.length, position.offset + HEADER_BYTES)
    if not body_matches(header, body):
        path = log.log.file_path(position.file)
        raise CorruptLog(path, position, "the body is not the one that arrived")
    return body


def _verdict(each: Slice, theirs: Sample, mine: Sample | None) -> Stuck:
    if mine == theirs:
        return Stuck("")
    return Stuck(
        f"session {each.session!r} does not have message {theirs.number} as its group "
        f"{each.group!r} has merged it, so its messages below {each.watermark} would be taken for "
        f"repeats and lost; publish under another name in no group, or begin at {each.watermark} "
        "(skip_to)",
        is_refused=True,
    )


def _sample(header: Header, body: bytes, place: int) -> Sample | None:
    """Return the sample of one message of a frame; None if the frame cannot be decoded."""
    try:
        columns = decode_columns(header, unpack_body(header, body))
    except FrameError:
        return None
    digest = blake2b(digest_size=_DIGEST_BYTES)
    key = b""
    if columns.key_offsets is not None:
        key = bytes(columns.keys[columns.key_offsets[place] : columns.key_offsets[place + 1]])
    digest.update(len(key).to_bytes(4, "little") + key)
    digest.update(columns.payload[columns.offsets[place] : columns.offsets[place + 1]])
    return Sample(header.sequence + place, digest.digest())

"""Logs for tests: written by the real code, with fixed times."""

from dataclasses import dataclass, field
from typing import NamedTuple

import zstandard

from rt.events import SessionChange
from rt.format.columns import encode_columns
from rt.format.frame import HEADERS_COLUMN, KEYS_COLUMN, Encoded, encode_frame, session_tag
from rt.format.manifest import MERGED, Archived, LogIdentity
from rt.format.ranges import EMPTY_DIGEST, Range
from rt.format.session_event import event_frame
from rt.log.files.archived import empty_files
from rt.log.files.disk import Disk, OsDisk
from rt.log.write.appender import Appender
from rt.position import START, Position

TIME_NS = 1_357_017_420_000_000_000  # 2013-01-01T05:17:00Z, the first departure of the real data


def make_frame(
    position: int,
    payloads: list[bytes],
    *,
    session: str = "jfk",
    sequence: int = 0,
    keys: list[bytes] | None = None,
    headers: list[bytes] | None = None,
    durable: int = 0,
    level: int = 0,
    time_ns: int = TIME_NS,
) -> Encoded:
    """Return a frame of messages 1,000 ns apart."""
    times = [time_ns + 1000 * place for place in range(len(payloads))]
    return encode_frame(
        encode_columns(times, payloads, keys, headers),
        position=position,
        sequence=sequence,
        time_ns=time_ns,
        messages=len(payloads),
        durable=durable,
        columns=KEYS_COLUMN * (keys is not None) | HEADERS_COLUMN * (headers is not None),
        compressor=zstandard.ZstdCompressor(level=level) if level else None,
        session_tag=session_tag(session),
    )


class Row(NamedTuple):
    """The expected fields of one message."""

    session: str
    sequence: int
    number: int
    key: bytes
    payload: bytes
    time_ns: int
    merge_time_ns: int | None


def rows(messages):
    """Return messages as rows, for comparison."""
    return [
        Row(m.session, m.sequence, m.number, m.key, m.payload, m.time_ns, m.merge_time_ns)
        for m in messages
    ]


@dataclass
class Source:
    """A session that exists only in the frames merged from it."""

    position: Position = START
    sequence: int = 0


@dataclass
class MergedLog:
    """A merged log, written range by range as by a sequencer; `expected` is its contents."""

    directory: str
    disk: Disk = field(default_factory=OsDisk)
    sources: dict[str, Source] = field(default_factory=dict)
    expected: list[Row] = field(default_factory=list)
    number: int = 0
    index: int = 0
    digest: bytes = EMPTY_DIGEST
    log_id: str = "0" * 32

    def __post_init__(self) -> None:
        identity = LogIdentity(MERGED, "flights", "out", self.log_id, TIME_NS)
        self.appender = Appender(self.disk, self.directory, identity)
        self.appender.recover()
        self.next_file = START

    def __enter__(self) -> "MergedLog":
        return self

    def __exit__(self, *_error: object) -> None:
        self.appender.close()

    def merge(
        self, session: str, *frames: list[bytes], keys: bool = False, level: int = 0,
        skip: int = 0, headers: bytes = b"",
    ) -> Range:  # fmt: skip
        """Append a range: for each frame its payloads; their first two bytes are the key.

        All messages have the same headers, encoded, if any.
        """
        source = self.sources.setdefault(session, Source())
        self.index += 1
        merge_time_ns = TIME_NS + 1_000_000 * self.index
        first, built, found = source.position, [], []
        for payloads in frames:
            names = [payload[:2] for payload in payloads] if keys else [b""] * len(payloads)
            frame = make_frame(
                source.position, payloads, session=session, sequence=source.sequence,
                keys=names if keys else None, level=level, time_ns=TIME_NS + source.sequence,
                headers=[headers] * len(payloads) if headers else None,
            )  # fmt: skip
            found += [
                (
                    source.sequence + place,
                    names[place],
                    payload,
                    frame.header.time_ns + 1000 * place,
                )
                for place, payload in enumerate(payloads)
            ]
            built.append(frame)
            source.position = Position(source.position + frame.header.size)
            source.sequence += len(payloads)
        self._expect(session, found[skip:], merge_time_ns)
        new = Range(
            self.index, 1, merge_time_ns, session, first, source.position - first,
            self.number, len(found) - skip, skip,
        )  # fmt: skip
        self.number += new.messages
        return self._append(new, built)

    def note(self, change: SessionChange, session: str) -> Range:
        """Append the event of a decision about a session, at the end of its merged messages."""
        self.index += 1
        merge_time_ns = TIME_NS + 1_000_000 * self.index
        place = self.sources.setdefault(session, Source()).position
        frame = event_frame(change, session, place, place, merge_time_ns, owner="publisher")
        size = frame.header.size
        return self._append(
            Range(self.index, 1, merge_time_ns, session, place, size, self.number, 0, 0), [frame]
        )

    def roll(self, sessions: str = "") -> None:
        """End the file, whose manifest line names `sessions`; the next range begins another."""
        self.next_file = self.appender.end.next_file()
        self.appender.roll(TIME_NS + 1_000_000 * self.index, sessions=sessions)

    def archive(self, *files: Position) -> None:
        """Archive files, line and bytes, as a node does."""
        for file in files:
            self.appender.archive(Archived(file, 7, "limit"))
        empty_files(self.disk, self.directory, files)

    def _expect(self, session, found, merge_time_ns) -> None:
        for place, (sequence, key, payload, time_ns) in enumerate(found):
            self.expected.append(
                Row(session, sequence, self.number + place, key, payload, time_ns, merge_time_ns)
            )

    def _append(self, new: Range, built: list[Encoded]) -> Range:
        if not self.appender.is_open:
            self.appender.begin_file(self.next_file)
        position = self.appender.end
        headers = b"".join(frame.parts[0] for frame in built)
        new = new.digested(self.digest, position, headers)
        self.digest = new.digest
        every = [new.frame(position), *built]
        after = self.appender.walk.copy()
        for frame in every:
            after.step(frame.header, frame.parts[1])
        parts = [part for frame in every for part in frame.parts]
        self.appender.append(parts, [frame.header for frame in every], after)
        return new

"""Dump: describes the frames of one log file as they are, up to the first bad one."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from rt.errors import FrameError
from rt.format.columns import decode_columns
from rt.format.frame import (
    HEADER_BYTES,
    HEADERS_COLUMN,
    KEYS_COLUMN,
    Codec,
    FrameKind,
    Header,
    parse_header,
    seal_header,
    unpack_body,
)
from rt.format.index import Index
from rt.format.ranges import Range, decode_range
from rt.format.scan import Frame, Scan
from rt.format.seek import walk_before
from rt.format.walk import Walk
from rt.log.files.directory import LogDirectory
from rt.position import Position, file_position
from rt.text import headers_fields, printable, text_field, time_text

_HEX_WIDTH: Final = 16


class Dump:
    """Iterates over the frames of one file, intact or damaged.

    After the iteration, `broken` says why it ended early; "" if it reached the end of the file.
    """

    def __init__(self, log: LogDirectory, path: str, begin: Position | None = None) -> None:
        """Open the file.

        Args:
            log: The file's directory, with or without a manifest.
            path: Path of the file, whatever its name.
            begin: The first position of interest; frames before it are skipped.

        Raises:
            OSError: The file cannot be opened, or is not a regular file.
        """
        self.broken = ""
        self._begin = begin
        self._file = log.disk.open_read(path)
        self._log = log
        self._start = _start(self._file.pread, path)
        merged = log.merged if log.is_there else _is_merged(self._file.pread)
        self._walk = self._first_walk(merged=merged)

    @property
    def position(self) -> Position:
        """The end of the last whole frame."""
        return self._walk.position

    def __iter__(self) -> Iterator[tuple[Frame, Range | None]]:
        """Yield the frames, each with its range if it is a range frame."""
        size = self._file.size()
        rolled = self._log.manifest.rolled_end(self._start)
        end = size if rolled is None else min(size, rolled)
        scan = Scan(self._file.pread, self._walk)
        try:
            while frame := scan.next(end):
                if self._begin is None or frame.position + frame.header.size > self._begin:
                    yield frame, _range(frame)
            if self._walk.position.offset < end:
                self.broken = "the frame is incomplete"
        except FrameError as error:
            self.broken = str(error)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _first_walk(self, *, merged: bool) -> Walk:
        log, begin = self._log, self._begin
        if begin is None or begin.file != self._start:
            return Walk(self._start, merged=merged, session=log.session)
        index, index_file = log.open_index(self._start)
        walk = walk_before(
            self._file.pread, index if index_file else _NO_INDEX, self._start,
            lambda entry: entry.offset > begin.offset, merged=merged, session=log.session,
        )  # fmt: skip
        if index_file is not None:
            index_file.close()
        return walk


_NO_INDEX: Final = Index(lambda _length, _offset: b"", 0)


def frame_facts(frame: Frame, current: Range | None) -> dict[str, Any]:
    """Return the fields of a frame's header, and those of its range if it has one."""
    header = frame.header
    facts: dict[str, Any] = {
        "position": str(frame.position), "kind": FrameKind(header.kind).name.lower(),
        "size": header.size, "written_for": str(Position(header.position)),
        "sequence": header.sequence, "time": time_text(header.time_ns), "time_ns": header.time_ns,
        "durable": str(Position(header.durable)), "messages": header.messages,
        "length": header.length, "raw_length": header.raw_length,
        "body_crc": f"{header.body_crc:08x}", "codec": Codec(header.codec).name.lower(),
        "keys": bool(header.columns & KEYS_COLUMN),
        "headers": bool(header.columns & HEADERS_COLUMN),
        "session_tag": f"{header.session_tag:08x}",
    }  # fmt: skip
    if current is not None:
        facts["range"] = current._asdict() | {
            "first": str(Position(current.first)),
            "digest": current.digest.hex(),
        }
    return facts


def frame_line(facts: dict[str, Any]) -> str:
    """Return the fields of a frame as one line."""
    if found := facts.get("range"):
        return (
            f"{facts['position']}  range   {printable(found['session'])} {found['first']}"
            f" +{found['length']}"
            f"  numbers {found['number']} +{found['messages']} skip {found['skip']}"
            f"  {facts['time']}  instruction {found['instruction']} term {found['term']}"
            f"  digest {found['digest']}"
        )
    codec = "" if facts["codec"] == "none" else f" {facts['codec']} of {facts['raw_length']}"
    return (
        f"{facts['position']}  {facts['kind']}  sequence {facts['sequence']} +{facts['messages']}"
        f"  {facts['time']}  {facts['size']} bytes{codec}{' keys' if facts['keys'] else ''}"
        f"{' headers' if facts['headers'] else ''}"
        f"  durable {facts['durable']}"
    )


def message_facts(frame: Frame) -> list[dict[str, Any]]:
    """Return the messages of a frame.

    Raises:
        FrameError: The frame's columns are inconsistent.
    """
    header = frame.header
    if header.kind != FrameKind.MESSAGES:
        return []
    columns = decode_columns(header, unpack_body(header, frame.body))
    headers = columns.headers or [{}] * header.messages
    rows = zip(columns.times, columns.message_keys(), headers, columns.payloads(), strict=True)
    return [
        {"position": str(Position(frame.position + place)), "sequence": header.sequence + place}
        | {"time": time_text(time_ns), "time_ns": time_ns}
        | (text_field("key", key) if key else {})
        | headers_fields(its_headers)
        | text_field("payload", payload)
        for place, (time_ns, key, its_headers, payload) in enumerate(rows)
    ]


def message_line(facts: dict[str, Any]) -> str:
    """Return the fields of a message as one line; unprintable text is quoted."""
    key = _quoted(facts, "key")
    return (
        f"    {facts['position']}  {facts['sequence']}  {facts['time']}  "
        f"{key + '  ' if key else ''}{_headers(facts)}{_quoted(facts, 'payload')}"
    )


def hex_lines(frame: Frame) -> Iterator[str]:
    """Yield the bytes of a frame as on disk, 16 per line: offset, hexadecimal, characters."""
    data = seal_header(frame.header) + frame.body
    for offset in range(0, len(data), _HEX_WIDTH):
        piece = data[offset : offset + _HEX_WIDTH]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        yield f"    {offset:06x}  {piece.hex(' '):<47}  {text}"


def _headers(facts: dict[str, Any]) -> str:
    found = [
        f"{_plain(name)}={before}{_plain(text)}"
        for kind, before in (("headers", ""), ("headers_base64", "base64:"))
        for name, text in facts.get(kind, {}).items()
    ]
    return f"[{', '.join(found)}]  " if found else ""


def _plain(text: str) -> str:
    return text if text.isprintable() else repr(text)


def _quoted(facts: dict[str, Any], name: str) -> str:
    text = facts.get(name)
    if text is None:
        return f"base64:{facts[f'{name}_base64']}" if f"{name}_base64" in facts else ""
    return _plain(text)


def _range(frame: Frame) -> Range | None:
    return decode_range(frame.header, frame.body) if frame.header.kind == FrameKind.RANGE else None


def _first_header(read: Callable[[int, int], bytes]) -> Header | None:
    try:
        return parse_header(read(HEADER_BYTES, 0))
    except FrameError:
        return None


def _is_merged(read: Callable[[int, int], bytes]) -> bool:
    header = _first_header(read)
    return header is not None and header.kind == FrameKind.RANGE


def _start(read: Callable[[int, int], bytes], path: str) -> Position:
    """Return the file's start position from its name, or if it was renamed, from its header."""
    named = file_position(path.rpartition("/")[2])
    header = _first_header(read)
    if named is not None or header is None:
        return named or Position(0)
    return Position(header.position).file

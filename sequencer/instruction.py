"""Instruction: the command that Raft agrees on; byte ranges of sessions, never a payload."""

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from rt.errors import Misuse, PeerError
from rt.names import parse_session
from rt.position import Position
from sequencer.raft.consensus import COMMAND_BYTES_MAX

_MERGE: Final = 1
_ROLL: Final = 2
_ARCHIVE: Final = 3
_NOTE: Final = 4
_HEAD: Final = struct.Struct("<BqH")  # what, time, slices
_SLICE: Final = struct.Struct("<QQIIIQQBB")
_FILE: Final = struct.Struct("<QB")
SLICES_MAX: Final = 4096  # of 45 bytes and two names of up to 63: half of COMMAND_BYTES_MAX
# Recording one takes some 20 us: an instruction of so many delays merging by 5 ms and one sync.
FILES_MAX: Final = 256
NOTE_BYTES_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive frames of one session, in one of its files, that are merged as one range.

    What the leader assumed stands in it too (`after`, `watermark`): where a slice comes to be
    executed on another state, every node leaves it out alike, and the leader plans it again.

    Attributes:
        session: name of the session.
        after: where the session was merged up to when this was planned.
        first: where the slice begins: `after`, or the start of the next file.
        length: bytes of whole frames.
        messages: in these frames, repeats included.
        skip: leading messages that are repeats.
        watermark: the number below which a message was a repeat when this was planned.
        next_sequence: the same after this slice.
        group: sessions of one group publish the same numbered messages and share a watermark;
            "" is a group of its own.
    """

    session: str
    after: Position
    first: Position
    length: int
    messages: int
    skip: int
    watermark: int
    next_sequence: int
    group: str = ""

    @property
    def end(self) -> Position:
        """Where the session is merged up to when this was executed."""
        return Position(self.first + self.length)

    @property
    def watermark_name(self) -> str:
        """Whose watermark it is; a group and a session may have the same name."""
        return f"group {self.group}" if self.group else self.session


@dataclass(frozen=True, slots=True)
class Merge:
    """Append these slices to the merged log, in this order, at this time (ns since the epoch)."""

    time_ns: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Roll:
    """End the active file of the merged log, if it holds anything."""

    time_ns: int


class ArchivedFile(NamedTuple):
    """A rolled file whose bytes go, and why."""

    file: Position
    reason: str


@dataclass(frozen=True, slots=True)
class Archive:
    """Archive these rolled files of the merged log, oldest first.

    One that is archived already, or is not rolled, is left out alike on every node.
    """

    time_ns: int
    files: tuple[ArchivedFile, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """Remember a text under a name, on every node; an empty text forgets the name.

    The policy is one, and each read lease. What they say is no business of the sequencer's.
    """

    time_ns: int
    name: str
    text: str

    def __post_init__(self) -> None:
        """Refuse here, to whoever asks for it, what could not be proposed."""
        try:
            name, text = self.name.encode(), self.text.encode()
        except UnicodeEncodeError as error:
            raise Misuse(f"a note is text: {error}") from None
        if not 0 < len(name) < 256 or len(text) > NOTE_BYTES_MAX:
            raise Misuse(f"a note has a name, and at most {NOTE_BYTES_MAX} bytes, not {len(text)}")


Instruction = Merge | Roll | Archive | Note


def encode_instruction(instruction: Instruction) -> bytes:
    """Return the command; `Misuse` if it is larger than an engine takes."""
    if isinstance(instruction, Roll):
        return _HEAD.pack(_ROLL, instruction.time_ns, 0)
    if isinstance(instruction, Archive):
        return _encode_archive(instruction)
    if isinstance(instruction, Note):
        return _encode_note(instruction)
    parts = [_HEAD.pack(_MERGE, instruction.time_ns, len(instruction.slices))]
    for each in instruction.slices:
        name, group = each.session.encode(), each.group.encode()
        fixed = _SLICE.pack(
            each.after, each.first, each.length, each.messages, each.skip, each.watermark,
            each.next_sequence, len(name), len(group),
        )  # fmt: skip
        parts += (fixed, name, group)
    command = b"".join(parts)
    if len(command) > COMMAND_BYTES_MAX:
        raise Misuse(f"an instruction of {len(instruction.slices)} slices is too large")
    return command


def decode_instruction(command: bytes) -> Instruction:
    """Read a command; `PeerError` if it is none of ours, and then nothing was taken."""
    try:
        what, time_ns, count = _HEAD.unpack_from(command)
        if what == _ROLL and len(command) == _HEAD.size:
            return Roll(time_ns)
        if what == _ARCHIVE:
            return Archive(time_ns, _decode_files(command, count))
        if what == _NOTE:
            return _decode_note(command, time_ns, count)
        if what != _MERGE or count > SLICES_MAX:
            raise PeerError(f"an instruction of an unknown kind ({what})")
        return Merge(time_ns, _decode_slices(command, count))
    except (struct.error, UnicodeDecodeError, Misuse) as error:
        raise PeerError(f"an instruction that cannot be read: {error}") from None


def _encode_archive(archive: Archive) -> bytes:
    if len(archive.files) > FILES_MAX:
        raise Misuse(f"an instruction archives {FILES_MAX} files at most")
    parts = [_HEAD.pack(_ARCHIVE, archive.time_ns, len(archive.files))]
    for file, reason in archive.files:
        words = reason.encode()[:255].decode(errors="ignore").encode()
        parts += (_FILE.pack(file, len(words)), words)
    return b"".join(parts)


def _decode_files(command: bytes, count: int) -> tuple[ArchivedFile, ...]:
    if count > FILES_MAX:
        raise PeerError(f"an instruction archives {count} files, {FILES_MAX} are the most")
    files, offset = [], _HEAD.size
    for _ in range(count):
        file, length = _FILE.unpack_from(command, offset)
        if file >= 1 << 63 or Position(file).offset:
            raise PeerError("an instruction archives what is no file")
        offset += _FILE.size + length
        files.append(ArchivedFile(Position(file), command[offset - length : offset].decode()))
    if offset != len(command):
        raise PeerError("an instruction is followed by bytes that are not of it")
    return tuple(files)


def _encode_note(note: Note) -> bytes:
    name, text = note.name.encode(), note.text.encode()
    return _HEAD.pack(_NOTE, note.time_ns, len(name)) + name + text


def _decode_note(command: bytes, time_ns: int, length: int) -> Note:
    end = _HEAD.size + length
    if not 0 < length < 256 or not 0 <= len(command) - end <= NOTE_BYTES_MAX:
        raise PeerError("a note of a size that cannot be")
    return Note(time_ns, command[_HEAD.size : end].decode(), command[end:].decode())


def _decode_slices(command: bytes, count: int) -> tuple[Slice, ...]:
    slices, offset = [], _HEAD.size
    for _ in range(count):
        *numbers, name_length, group_length = _SLICE.unpack_from(command, offset)
        names = offset + _SLICE.size
        offset = names + name_length + group_length
        name = command[names : names + name_length].decode("ascii")
        group = command[names + name_length : offset].decode("ascii")
        slices.append(_checked(name, group, numbers))
    if offset != len(command):
        raise PeerError("an instruction is followed by bytes that are not of it")
    return tuple(slices)


def _checked(name: str, group: str, numbers: list[int]) -> Slice:
    after, first, length, messages, skip, watermark, next_sequence = numbers
    if max(after, first) >= 1 << 63 or first < after or not length or length % 8:
        raise PeerError("a slice names bytes that cannot be")
    if skip > messages or next_sequence < watermark:
        raise PeerError("a slice counts messages that cannot be")
    parse_session(name)
    if group:
        parse_session(group)
    return Slice(
        name, Position(after), Position(first), length, messages, skip, watermark,
        next_sequence, group,
    )  # fmt: skip

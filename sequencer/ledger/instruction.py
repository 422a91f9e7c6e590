"""Instruction: a command that Raft agrees on; most list byte ranges of sessions to merge.

Small ranges are in the command with their bytes.
"""

import struct
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final, NamedTuple

from rt.errors import Misuse, PeerError
from rt.limits import KIB
from rt.names import decode_session
from rt.position import Position
from sequencer.ledger.life import Life, decode_life, encode_life
from sequencer.raft.consensus import COMMAND_BYTES_MAX

_MERGE_BARE: Final = 1  # slices without digests, as journals may still have them
_ROLL: Final = 2
_ARCHIVE: Final = 3
_NOTE: Final = 4
_MERGE: Final = 5
_LIFE: Final = 6
_NOTE_IF: Final = 7
_LIVES: Final = 8
_MERGE_CARRIED: Final = 9  # slices with digests, each followed by its bytes or by none
_TAIL: Final = "an instruction is followed by bytes that do not belong to it"
_HEAD: Final = struct.Struct("<BqH")  # kind, time, number of slices, files or bytes
_SLICE: Final = struct.Struct("<QQIIIQQBB")
_FILE: Final = struct.Struct("<QB")
_LIFE_LENGTH: Final = struct.Struct("<B")  # 169 at most
_CARRIED: Final = struct.Struct("<I")  # bytes that follow
SLICE_DIGEST_BYTES: Final = 16
# A slice takes 46 + 16 bytes and two names of up to 63 bytes each, so this many slices take at most
# 3/4 of COMMAND_BYTES_MAX.
SLICES_MAX: Final = 4096
# Carried bytes of all slices of an instruction. Memory and journal keep them until the next
# snapshot.
CARRIED_BYTES_MAX: Final = 16 * KIB
# Recording a file takes some 20 us, so this many files delay merging by 5 ms and one sync.
FILES_MAX: Final = 256
LIVES_MAX: Final = 256  # an event takes some 30 us: less than 10 ms
NOTE_BYTES_MAX: Final = 4096  # a snapshot has up to 128 notes
NOTE_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Slice:
    """Slice: consecutive frames of one file of a session, merged as one range.

    A slice records the state it was planned on (`after`, `watermark`). If the state differs on
    execution, every node skips the slice and the leader plans it again.

    Attributes:
        session: name of the session.
        after: the session's merged end when this was planned.
        first: where the slice begins: `after`, or the start of the next file.
        length: bytes of whole frames.
        messages: number of messages in these frames, repeats included.
        skip: number of leading messages that are repeats.
        watermark: the number below which a message was a repeat when this was planned.
        next_sequence: the watermark after this slice.
        group: the session's group, whose sessions publish the same numbered messages and share a
            watermark; "" if the session is in no group.
        digest: `slice_digest` of the frames' headers, as the leader has them; b"" if unknown.
        carried: the frames themselves, checksums verified, if the slice was planned before a
            majority held them; otherwise b"".
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
    digest: bytes = b""
    carried: bytes = field(default=b"", repr=False)  # payloads never reach a log line

    @property
    def end(self) -> Position:
        """The session's merged end after this slice."""
        return Position(self.first + self.length)

    @property
    def watermark_name(self) -> str:
        """The ledger's key for the slice's watermark; a prefix distinguishes groups."""
        return f"group {self.group}" if self.group else self.session

    def agrees_with(self, headers: bytes) -> bool:
        """Whether these frame headers match the leader's digest; true if there is no digest."""
        return not self.digest or slice_digest(headers) == self.digest


def slice_digest(headers: bytes) -> bytes:
    """Return the digest of the raw headers of a slice's frames, 64 bytes each.

    Each header has the position and body CRC of its frame, so the cost is per frame, not per byte.
    """
    return blake2b(headers, digest_size=SLICE_DIGEST_BYTES).digest()


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
    """A rolled file to archive, and why."""

    file: Position
    reason: str


@dataclass(frozen=True, slots=True)
class Archive:
    """Archive these rolled files of the merged log, oldest first.

    Every node skips a file that is already archived or not yet rolled.
    """

    time_ns: int
    files: tuple[ArchivedFile, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """Store a text under a name on every node; an empty text deletes the name.

    The policy, read leases, registered cursors and groups of readers are notes. Of all notes, the
    sequencer interprets only those of a founding, a seal and the formats' level. A note with
    `expected` is a compare-and-set: if the name holds another text on execution, no node changes
    anything.
    """

    time_ns: int
    name: str
    text: str
    expected: bytes = b""  # `note_digest` of the text to be replaced; b"" replaces any

    def __post_init__(self) -> None:
        """Refuse a note that could not be proposed, so that the caller gets the error."""
        try:
            name, text = self.name.encode(), self.text.encode()
        except UnicodeEncodeError as error:
            raise Misuse(f"a note must be text: {error}") from None
        if not 0 < len(name) < 256 or len(text) > NOTE_BYTES_MAX:
            raise Misuse(f"a note has a name, and at most {NOTE_BYTES_MAX} bytes, not {len(text)}")

    def replaces(self, text: str) -> bool:
        """Whether this note may replace `text`, the current text of its name; "" for none."""
        return not self.expected or self.expected == note_digest(text)


def note_digest(text: str) -> bytes:
    """Return the digest of a text, as in `Note.expected`."""
    return blake2b(text.encode(), digest_size=NOTE_DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Lives:
    """Change these sessions in order, but skip each change that was decided on another state.

    Every change gets `time_ns`, because no other time is encoded. The leader executes its own
    proposal without decoding it, and must write the same bytes as the nodes that decode it.
    """

    time_ns: int
    lives: tuple[Life, ...]

    def __post_init__(self) -> None:
        lives = tuple(replace(each, time_ns=self.time_ns) for each in self.lives)
        object.__setattr__(self, "lives", lives)


Instruction = Merge | Roll | Archive | Note | Life | Lives


def lives_of(instruction: Instruction | None) -> tuple[Life, ...]:
    """Return the session changes that an instruction makes."""
    if isinstance(instruction, Life):
        return (instruction,)
    return instruction.lives if isinstance(instruction, Lives) else ()


def encode_instruction(instruction: Instruction) -> bytes:
    """Return the command; `Misuse` if it is larger than an engine accepts."""
    if isinstance(instruction, Roll):
        return _HEAD.pack(_ROLL, instruction.time_ns, 0)
    if isinstance(instruction, Archive):
        return _encode_archive(instruction)
    if isinstance(instruction, Note):
        return _encode_note(instruction)
    if isinstance(instruction, Life):
        return _HEAD.pack(_LIFE, instruction.time_ns, 0) + encode_life(instruction)
    if isinstance(instruction, Lives):
        return _encode_lives(instruction)
    return encode_merge(instruction)


def demand_readable(instruction: Instruction) -> bytes:
    """Return the encoded command, after checking that every node can read it.

    Only a merge is not decoded for this check: it was planned from frames that were checked when
    they arrived.

    Raises:
        Misuse: the command is too large, or a number in it is out of range.
    """
    try:
        if isinstance(instruction, Merge):
            return encode_merge(instruction)
        command = encode_instruction(instruction)
        decode_instruction(command)
    except (struct.error, PeerError) as error:
        raise Misuse(f"no node could read this instruction: {error}") from None
    return command


def decode_instruction(command: bytes) -> Instruction:
    """Read a command; `PeerError` if it is malformed or of an unknown kind."""
    try:
        what, time_ns, count = _HEAD.unpack_from(command)
        if what == _ROLL and len(command) == _HEAD.size:
            return Roll(time_ns)
        if what == _ARCHIVE:
            return Archive(time_ns, _decode_files(command, count))
        if what in {_NOTE, _NOTE_IF}:
            return _decode_note(command, time_ns, count, NOTE_DIGEST_BYTES * (what == _NOTE_IF))
        if what == _LIFE and not count:
            return decode_life(time_ns, command[_HEAD.size :])
        if what == _LIVES:
            return Lives(time_ns, _decode_lives(command, time_ns, count))
        if what not in {_MERGE, _MERGE_BARE, _MERGE_CARRIED} or count > SLICES_MAX:
            raise PeerError(f"an instruction of an unknown kind ({what})")
        return Merge(time_ns, _decode_slices(command, count, what))
    except (struct.error, UnicodeDecodeError, Misuse) as error:
        raise PeerError(f"unreadable instruction: {error}") from None


def encode_merge(merge: Merge) -> bytes:
    """Return a merge as a command, without digests if one is missing; `Misuse` if too large."""
    kind = _MERGE
    for each in merge.slices:
        if each.carried:
            kind = _MERGE_CARRIED
            break
        if not each.digest:
            kind = _MERGE_BARE
    parts = [_HEAD.pack(kind, merge.time_ns, len(merge.slices))]
    for each in merge.slices:
        name, group = each.session.encode(), each.group.encode()
        fixed = _SLICE.pack(
            each.after, each.first, each.length, each.messages, each.skip, each.watermark,
            each.next_sequence, len(name), len(group),
        )  # fmt: skip
        parts += (fixed, each.digest if kind != _MERGE_BARE else b"", name, group)
        if kind == _MERGE_CARRIED:
            parts += (_CARRIED.pack(len(each.carried)), each.carried)
    command = b"".join(parts)
    if len(command) > COMMAND_BYTES_MAX:
        raise Misuse(f"an instruction of {len(merge.slices)} slices is too large")
    return command


def _encode_archive(archive: Archive) -> bytes:
    if len(archive.files) > FILES_MAX:
        raise Misuse(f"an instruction archives at most {FILES_MAX} files")
    parts = [_HEAD.pack(_ARCHIVE, archive.time_ns, len(archive.files))]
    for file, reason in archive.files:
        text = reason.encode()[:255].decode(errors="ignore").encode()
        parts += (_FILE.pack(file, len(text)), text)
    return b"".join(parts)


def _decode_files(command: bytes, count: int) -> tuple[ArchivedFile, ...]:
    if count > FILES_MAX:
        raise PeerError(f"an instruction archives {count} files; {FILES_MAX} is the maximum")
    files, offset = [], _HEAD.size
    for _ in range(count):
        file, length = _FILE.unpack_from(command, offset)
        if file >= 1 << 63 or Position(file).offset:
            raise PeerError("an instruction archives a position that is not a file")
        offset += _FILE.size + length
        files.append(ArchivedFile(Position(file), command[offset - length : offset].decode()))
    if offset != len(command):
        raise PeerError(_TAIL)
    return tuple(files)


def _encode_lives(instruction: Lives) -> bytes:
    if len(instruction.lives) > LIVES_MAX:
        raise Misuse(f"an instruction changes at most {LIVES_MAX} sessions")
    parts = [_HEAD.pack(_LIVES, instruction.time_ns, len(instruction.lives))]
    for each in map(encode_life, instruction.lives):
        parts += (_LIFE_LENGTH.pack(len(each)), each)
    return b"".join(parts)


def _decode_lives(command: bytes, time_ns: int, count: int) -> tuple[Life, ...]:
    if count > LIVES_MAX:
        raise PeerError(f"an instruction changes {count} sessions; {LIVES_MAX} is the maximum")
    lives, offset = [], _HEAD.size
    for _ in range(count):
        [length] = _LIFE_LENGTH.unpack_from(command, offset)
        begin, offset = offset + _LIFE_LENGTH.size, offset + _LIFE_LENGTH.size + length
        lives.append(decode_life(time_ns, command[begin:offset]))
    if offset != len(command):
        raise PeerError(_TAIL)
    return tuple(lives)


def _encode_note(note: Note) -> bytes:
    name, text = note.name.encode(), note.text.encode()
    kind = _NOTE_IF if note.expected else _NOTE
    return _HEAD.pack(kind, note.time_ns, len(name)) + note.expected + name + text


def _decode_note(command: bytes, time_ns: int, length: int, digest_bytes: int) -> Note:
    begin = _HEAD.size + digest_bytes
    end = begin + length
    if not 0 < length < 256 or not 0 <= len(command) - end <= NOTE_BYTES_MAX:
        raise PeerError("a note of an impossible size")
    expected = command[_HEAD.size : begin]
    return Note(time_ns, command[begin:end].decode(), command[end:].decode(), expected)


def _decode_slices(command: bytes, count: int, kind: int) -> tuple[Slice, ...]:
    slices, offset, left = [], _HEAD.size, CARRIED_BYTES_MAX
    digest_bytes = 0 if kind == _MERGE_BARE else SLICE_DIGEST_BYTES
    for _ in range(count):
        *numbers, name_length, group_length = _SLICE.unpack_from(command, offset)
        names = offset + _SLICE.size + digest_bytes
        digest = command[names - digest_bytes : names]
        offset = names + name_length + group_length
        name = decode_session(command[names : names + name_length])
        group = decode_session(command[names + name_length : offset]) if group_length else ""
        carried = b""
        if kind == _MERGE_CARRIED:
            [length] = _CARRIED.unpack_from(command, offset)
            begin, offset = offset + _CARRIED.size, offset + _CARRIED.size + length
            carried, left = command[begin:offset], left - length
        slices.append(_checked(name, group, digest, carried, numbers))
    if offset != len(command):
        raise PeerError(_TAIL)
    if left < 0:
        raise PeerError(f"an instruction carries more than {CARRIED_BYTES_MAX} bytes")
    return tuple(slices)


def _checked(name: str, group: str, digest: bytes, carried: bytes, numbers: list[int]) -> Slice:
    after, first, length, messages, skip, watermark, next_sequence = numbers
    if max(after, first) >= 1 << 63 or first < after or not length or length % 8:
        raise PeerError("a slice names impossible bytes")
    if skip > messages or next_sequence < watermark:
        raise PeerError("a slice has impossible message counts")
    if carried and len(carried) != length:
        raise PeerError("a slice carries other bytes than it names")
    return Slice(
        name, Position(after), Position(first), length, messages, skip, watermark,
        next_sequence, group, digest, carried,
    )  # fmt: skip

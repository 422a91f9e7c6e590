"""Instruction: the command that Raft agrees on; byte ranges of sessions, never a payload."""

import struct
from dataclasses import dataclass
from typing import Final

from rt.errors import Misuse, PeerError
from rt.names import parse_session
from rt.position import Position
from sequencer.consensus import COMMAND_BYTES_MAX

_MERGE: Final = 1
_ROLL: Final = 2
_HEAD: Final = struct.Struct("<BqH")  # what, time, slices
_SLICE: Final = struct.Struct("<QQIIIQQBB")
SLICES_MAX: Final = 4096  # of 45 bytes and two names of up to 63: half of COMMAND_BYTES_MAX


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


Instruction = Merge | Roll


def encode_instruction(instruction: Instruction) -> bytes:
    """Return the command; `Misuse` if it is larger than an engine takes."""
    if isinstance(instruction, Roll):
        return _HEAD.pack(_ROLL, instruction.time_ns, 0)
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
        if what != _MERGE or count > SLICES_MAX:
            raise PeerError(f"an instruction of an unknown kind ({what})")
        return Merge(time_ns, _decode_slices(command, count))
    except (struct.error, UnicodeDecodeError, Misuse) as error:
        raise PeerError(f"an instruction that cannot be read: {error}") from None


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
    if max(after, first) >= 1 << 62 or first < after or not length or length % 8:
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

"""Raft messages: what nodes say to each other, and its bytes.

Little endian. Header: kind u8, flags u8, zero u16, CRC-32 of cluster and members u32, incarnation
of the sender u64, term u64. Then the fields of the kind, then its tail. A message that opens a
conversation carries the list of members, so that a mismatch can be shown with both lists.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rt.errors import PeerError
from rt.format.checksum import crc32
from sequencer.raft.consensus import COMMAND_BYTES_MAX, MEMBERS_ALLOWED, Entry, EntryKind
from sequencer.raft.entries import (
    ENTRIES_MAX,
    ENTRY_BYTES,
    NUMBER_MAX,
    pack_entries,
    unpack_entries,
    unpack_member,
)

NAME_BYTES_MAX: Final = 255  # its length is one byte
BATCH_BYTES: Final = 256 * 1024  # commands per message, unless a single one is larger
CHUNK_BYTES: Final = 256 * 1024  # of a snapshot per message
# The largest honest message: a full batch that ends in the largest command, and all names.
MESSAGE_BYTES_MAX: Final = (
    BATCH_BYTES + COMMAND_BYTES_MAX + ENTRIES_MAX * ENTRY_BYTES + 8 * 256 + 128
)


@dataclass(frozen=True, slots=True)
class AskVote:
    """A candidate asks; `pre` only asks whether asking would succeed and changes nobody's term."""

    term: int
    last_index: int
    last_term: int
    pre: bool = False
    forced: bool = False  # the old leader sent it: do not hold on to that leader


@dataclass(frozen=True, slots=True)
class Vote:
    """The answer; its term is the asked one if granted, else the voter's."""

    term: int
    granted: bool
    pre: bool = False


@dataclass(frozen=True, slots=True)
class Append:
    """The leader's log from after `prev_index`; without entries, a sign of life."""

    term: int
    prev_index: int
    prev_term: int
    commit: int
    round: int
    entries: tuple[Entry, ...] = ()
    opens: bool = False  # carries the members
    quiet: bool = False  # tells of the commit index alone: not to be answered if it is taken


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer: durable up to `index`, or the log differs at `index` and agrees by `hint`."""

    term: int
    taken: bool
    index: int
    round: int
    hint_index: int = 0
    hint_term: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of the leader's snapshot."""

    term: int
    index: int
    index_term: int
    offset: int
    total: int
    round: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ChunkTaken:
    """The answer: of that snapshot, `offset` bytes are here."""

    term: int
    index: int
    offset: int
    round: int


@dataclass(frozen=True, slots=True)
class Lead:
    """The leader asks the receiver to stand for election at once."""

    term: int


@dataclass(frozen=True, slots=True)
class AskRead:
    """A follower asks from where a read is linearizable."""

    term: int
    ticket: int


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """The answer."""

    term: int
    ticket: int
    index: int


AnyMessage = AskVote | Vote | Append | Appended | Chunk | ChunkTaken | Lead | AskRead | ReadFrom

_HEADER: Final = struct.Struct("<BBHIQQ")
_NAME_LENGTH: Final = struct.Struct("<B")
_ASK_VOTE: Final = struct.Struct("<QQ")
_APPEND: Final = struct.Struct("<QQQQI")
_APPENDED: Final = struct.Struct("<QQQQ")
_CHUNK: Final = struct.Struct("<QQQQQ")
_CHUNK_TAKEN: Final = struct.Struct("<QQQ")
_ASK_READ: Final = struct.Struct("<Q")
_READ_FROM: Final = struct.Struct("<QQ")
_FLAG_1: Final = 1  # pre, taken, opens
_FLAG_2: Final = 2  # forced, granted, quiet


class MessageCodec:
    """Encodes and decodes for one node of one cluster."""

    __slots__ = ("_entries", "_incarnation", "_members", "_names", "_packed", "digest")

    def __init__(self, cluster: str, members: Sequence[str], incarnation: int) -> None:
        self._members = tuple(members)
        self._names = pack_names(cluster, members)
        self.digest = crc32(self._names)
        self._incarnation = incarnation
        self._entries: tuple[Entry, ...] = ()
        self._packed = b""

    def encode(self, message: AnyMessage) -> bytes:
        """The bytes of a message."""
        tag, flags, body = _ENCODERS[type(message)](self, message)
        header = _HEADER.pack(tag, flags, 0, self.digest, self._incarnation, message.term)
        return header + body

    def decode(self, data: bytes) -> tuple[int, AnyMessage]:
        """The sender's incarnation and its message; `PeerError` for anything but these bytes."""
        if len(data) > MESSAGE_BYTES_MAX:
            raise PeerError(f"message of {len(data)} bytes; the limit is {MESSAGE_BYTES_MAX}")
        try:
            tag, flags, zero, digest, incarnation, term = _HEADER.unpack_from(data)
            decoder = _DECODERS[tag]
            if digest != self.digest:
                raise PeerError(self._mismatch(tag, flags, data))
            message = decoder(self, flags, term, data)
        except (struct.error, KeyError, ValueError) as error:
            raise PeerError(f"malformed consensus message: {error}") from None
        if zero or max(incarnation, term) > NUMBER_MAX:
            raise PeerError("malformed consensus message: a number out of range")
        return incarnation, message

    def packed(self, entries: tuple[Entry, ...]) -> bytes:
        """Pack entries; the same tuple goes to several peers and is packed once."""
        if entries is not self._entries:
            self._entries, self._packed = entries, pack_entries(entries)
        return self._packed

    def check(self, entry: Entry) -> None:
        """Demand that an entry of the engine's own is one; `ValueError` otherwise."""
        if entry.kind is EntryKind.MEMBER and unpack_member(entry.command)[0] not in self._members:
            raise ValueError("an entry about a node that is not a member")

    @property
    def names(self) -> bytes:
        """The tail of a message that opens a conversation."""
        return self._names

    def _mismatch(self, tag: int, flags: int, data: bytes) -> str:
        ours = unpack_names(self._names)
        offset = _HEADER.size + _ASK_VOTE.size if tag == _TAG_ASK_VOTE else 0
        if tag == _TAG_APPEND and flags & _FLAG_1:
            offset = _HEADER.size + _APPEND.size
        if not offset:
            return f"another cluster or other members than ours, {describe(ours)}"
        theirs = unpack_names(data[offset:])
        return f"the peer's configuration is {describe(theirs)}, ours is {describe(ours)}"


def describe(names: Sequence[str]) -> str:
    """A cluster and its members, for people."""
    return f"cluster {names[0]!r} of {', '.join(names[1:])}"


def pack_names(cluster: str, members: Sequence[str]) -> bytes:
    """The bytes of the cluster's name and its members' names."""
    parts = [bytes([len(members) + 1])]
    for name in (cluster, *members):
        encoded = name.encode()
        if len(encoded) > NAME_BYTES_MAX:
            raise ValueError(f"a name of {len(encoded)} bytes; the limit is {NAME_BYTES_MAX}")
        parts += [bytes([len(encoded)]), encoded]
    return b"".join(parts)


def unpack_names(data: bytes) -> tuple[str, ...]:
    """The cluster's name, then its members'; what follows them is not looked at."""
    if not data or data[0] - 1 not in MEMBERS_ALLOWED:
        raise ValueError("no list of 1, 3, 5 or 7 members")
    names, offset = [], 1
    for _ in range(data[0]):
        (length,) = _NAME_LENGTH.unpack_from(data, offset)
        name = data[offset + 1 : offset + 1 + length]
        if len(name) != length:
            raise ValueError("a name is cut short")
        names.append(name.decode())
        offset += 1 + length
    return tuple(names)


_Encoded = tuple[int, int, bytes]
_TAG_ASK_VOTE: Final = 1
_TAG_APPEND: Final = 3


def _encode_ask_vote(codec: MessageCodec, m: AskVote) -> _Encoded:
    body = _ASK_VOTE.pack(m.last_index, m.last_term) + codec.names
    return _TAG_ASK_VOTE, m.pre * _FLAG_1 | m.forced * _FLAG_2, body


def _encode_vote(_: MessageCodec, m: Vote) -> _Encoded:
    return 2, m.pre * _FLAG_1 | m.granted * _FLAG_2, b""


def _encode_append(codec: MessageCodec, m: Append) -> _Encoded:
    body = _APPEND.pack(m.prev_index, m.prev_term, m.commit, m.round, len(m.entries))
    if m.opens:
        body += codec.names
    if m.entries:
        body += codec.packed(m.entries)
    return _TAG_APPEND, m.opens * _FLAG_1 | m.quiet * _FLAG_2, body


def _encode_appended(_: MessageCodec, m: Appended) -> _Encoded:
    return 4, m.taken * _FLAG_1, _APPENDED.pack(m.index, m.round, m.hint_index, m.hint_term)


def _encode_chunk(_: MessageCodec, m: Chunk) -> _Encoded:
    return 5, 0, _CHUNK.pack(m.index, m.index_term, m.offset, m.total, m.round) + m.data


def _encode_chunk_taken(_: MessageCodec, m: ChunkTaken) -> _Encoded:
    return 6, 0, _CHUNK_TAKEN.pack(m.index, m.offset, m.round)


def _encode_lead(_: MessageCodec, _message: Lead) -> _Encoded:
    return 7, 0, b""


def _encode_ask_read(_: MessageCodec, m: AskRead) -> _Encoded:
    return 8, 0, _ASK_READ.pack(m.ticket)


def _encode_read_from(_: MessageCodec, m: ReadFrom) -> _Encoded:
    return 9, 0, _READ_FROM.pack(m.ticket, m.index)


_ENCODERS: Final[dict[type, Callable[..., _Encoded]]] = {
    AskVote: _encode_ask_vote,
    Vote: _encode_vote,
    Append: _encode_append,
    Appended: _encode_appended,
    Chunk: _encode_chunk,
    ChunkTaken: _encode_chunk_taken,
    Lead: _encode_lead,
    AskRead: _encode_ask_read,
    ReadFrom: _encode_read_from,
}


def _fields(layout: struct.Struct, data: bytes, tail: int = 0) -> tuple[int, ...]:
    """The fields after the header, of which `tail` bytes more must follow exactly."""
    fields: tuple[int, ...] = layout.unpack_from(data, _HEADER.size)
    if len(data) != _HEADER.size + layout.size + tail:
        raise ValueError("its length is not what its kind says")
    if max(fields) > NUMBER_MAX:
        raise ValueError("a number out of range")
    return fields


def _decode_ask_vote(codec: MessageCodec, flags: int, term: int, data: bytes) -> AskVote:
    index, index_term = _fields(_ASK_VOTE, data, len(codec.names))
    if not data.endswith(codec.names):
        raise ValueError("the members are not those of its checksum")
    return AskVote(term, index, index_term, bool(flags & _FLAG_1), bool(flags & _FLAG_2))


def _decode_vote(_: MessageCodec, flags: int, term: int, data: bytes) -> Vote:
    if len(data) != _HEADER.size:
        raise ValueError("its length is not what its kind says")
    return Vote(term, bool(flags & _FLAG_2), bool(flags & _FLAG_1))


def _decode_append(codec: MessageCodec, flags: int, term: int, data: bytes) -> Append:
    prev_index, prev_term, commit, round_, count = _APPEND.unpack_from(data, _HEADER.size)
    if max(prev_index, prev_term, commit, round_) > NUMBER_MAX or count > ENTRIES_MAX:
        raise ValueError("a number out of range")
    opens, quiet = bool(flags & _FLAG_1), bool(flags & _FLAG_2)
    start = _HEADER.size + _APPEND.size
    if opens:
        if not data.startswith(codec.names, start):
            raise ValueError("the members are not those of its checksum")
        start += len(codec.names)
    entries = unpack_entries(data, start, prev_index, prev_term)
    if len(entries) != count or prev_term > term or (entries and entries[-1].term > term):
        raise ValueError("entries are missing, or newer than the leader")
    for entry in entries:
        if entry.kind is not EntryKind.COMMAND:
            codec.check(entry)
    return Append(term, prev_index, prev_term, commit, round_, entries, opens, quiet)


def _decode_appended(_: MessageCodec, flags: int, term: int, data: bytes) -> Appended:
    index, round_, hint_index, hint_term = _fields(_APPENDED, data)
    return Appended(term, bool(flags & _FLAG_1), index, round_, hint_index, hint_term)


def _decode_chunk(_: MessageCodec, _flags: int, term: int, data: bytes) -> Chunk:
    body = data[_HEADER.size + _CHUNK.size :]
    index, index_term, offset, total, round_ = _fields(_CHUNK, data, len(body))
    if len(body) > CHUNK_BYTES or offset + len(body) > total or index_term > term:
        raise ValueError("a chunk that reaches beyond its snapshot")
    return Chunk(term, index, index_term, offset, total, round_, body)


def _decode_chunk_taken(_: MessageCodec, _flags: int, term: int, data: bytes) -> ChunkTaken:
    return ChunkTaken(term, *_fields(_CHUNK_TAKEN, data))


def _decode_lead(_: MessageCodec, _flags: int, term: int, data: bytes) -> Lead:
    if len(data) != _HEADER.size:
        raise ValueError("its length is not what its kind says")
    return Lead(term)


def _decode_ask_read(_: MessageCodec, _flags: int, term: int, data: bytes) -> AskRead:
    return AskRead(term, *_fields(_ASK_READ, data))


def _decode_read_from(_: MessageCodec, _flags: int, term: int, data: bytes) -> ReadFrom:
    return ReadFrom(term, *_fields(_READ_FROM, data))


_DECODERS: Final[dict[int, Callable[[MessageCodec, int, int, bytes], AnyMessage]]] = {
    _TAG_ASK_VOTE: _decode_ask_vote,
    2: _decode_vote,
    _TAG_APPEND: _decode_append,
    4: _decode_appended,
    5: _decode_chunk,
    6: _decode_chunk_taken,
    7: _decode_lead,
    8: _decode_ask_read,
    9: _decode_read_from,
}

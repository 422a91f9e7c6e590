"""The encoding of Raft messages.

Little endian. Header: kind u8, flags u8, digest of the founders u16, CRC-32 of the cluster id u32,
sender's incarnation u64, term u64. The fields of the kind follow, then any part of variable length.
RequestVote and heartbeats carry the list of founders, so that an error can show both lists.

Nodes that were founded with different lists of members must not count each other's replies, since
two of their majorities may have no node in common. So a message whose digest of the founders
differs is refused. A node that joined later has no such list: its digest is 0, which always
matches.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from rt.errors import PeerError
from rt.format.checksum import crc32
from sequencer.raft.consensus import INCARNATION_END, VOTERS_MAX, Entry, EntryKind
from sequencer.raft.entries import (
    ENTRIES_MAX,
    NAME_BYTES_MAX,
    NUMBER_MAX,
    pack_entries,
    unpack_configuration,
    unpack_entries,
    unpack_member,
)
from sequencer.raft.messages import (
    CHUNK_BYTES,
    MESSAGE_BYTES_MAX,
    AnyMessage,
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    ReadIndex,
    ReadIndexReply,
    RequestVote,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
)

_HEADER: Final = struct.Struct("<BBHIQQ")
_NAME_LENGTH: Final = struct.Struct("<B")
_REQUEST_VOTE: Final = struct.Struct("<QQ")
_APPEND_ENTRIES: Final = struct.Struct("<QQQQI")
_APPEND_REPLY: Final = struct.Struct("<QQQQ")
_INSTALL_SNAPSHOT: Final = struct.Struct("<QQQQQ")
_SNAPSHOT_REPLY: Final = struct.Struct("<QQQ")
_READ_INDEX: Final = struct.Struct("<Q")
_READ_INDEX_REPLY: Final = struct.Struct("<QQ")
_EMPTY: Final = struct.Struct("<")  # for messages that are only a header
_FLAG_1: Final = 1  # pre_vote, success, heartbeat
_FLAG_2: Final = 2  # transfer, granted, no_reply


class MessageCodec:
    """Encodes and decodes one node's messages; `names` are its cluster and founders, packed."""

    __slots__ = ("_encoded", "_incarnation", "_message", "digest", "founders", "names")

    def __init__(self, cluster: str, founders: Sequence[str], incarnation: int) -> None:
        """Encode for one copy of a node's state; `founders` is empty if that copy joined later."""
        self.names = pack_names(cluster, founders)
        self.founders = founders_digest(founders)
        self.digest = crc32(cluster.encode())
        self._incarnation = incarnation
        self._message: AnyMessage | None = None  # the last that was encoded
        self._encoded = b""

    def encode(self, message: AnyMessage) -> bytes:
        """Return a message's bytes, cached since a leader sends it to several peers in a row."""
        if message == self._message:
            return self._encoded
        tag, flags, body = _ENCODERS[type(message)](self, message)
        fields = (tag, flags, self.founders, self.digest, self._incarnation, message.term)
        self._message, self._encoded = message, _HEADER.pack(*fields) + body
        return self._encoded

    def decode(self, data: bytes) -> tuple[int, AnyMessage]:
        """Return the sender's incarnation and the message.

        Raises:
            PeerError: the bytes are malformed, or the sender has another cluster or founders.
        """
        if len(data) > MESSAGE_BYTES_MAX:
            raise PeerError(f"message of {len(data)} bytes; the limit is {MESSAGE_BYTES_MAX}")
        try:
            tag, flags, founders, digest, incarnation, term = _HEADER.unpack_from(data)
            decoder = _DECODERS[tag]
            if digest != self.digest or (founders and self.founders not in {0, founders}):
                raise PeerError(self._mismatch(tag, flags, data))
            message = decoder(self, flags, term, data)
        except (struct.error, KeyError, ValueError) as error:
            raise PeerError(f"malformed consensus message: {error}") from None
        if term > NUMBER_MAX or incarnation >= INCARNATION_END:
            raise PeerError("malformed consensus message: a number out of range")
        return incarnation, message

    def check(self, entry: Entry) -> None:
        """Raise `ValueError` if an entry that changes the members is malformed."""
        if entry.kind is EntryKind.MEMBER:
            unpack_member(entry.command)
        elif entry.kind is EntryKind.CONFIGURATION:
            _, end = unpack_configuration(entry.command)
            if end != len(entry.command):
                raise ValueError("bytes after a configuration")

    def _mismatch(self, tag: int, flags: int, data: bytes) -> str:
        ours, _ = unpack_names(self.names, 0)
        offset = _HEADER.size + _REQUEST_VOTE.size if tag == _TAG_REQUEST_VOTE else 0
        if tag == _TAG_APPEND_ENTRIES and flags & _FLAG_1:
            offset = _HEADER.size + _APPEND_ENTRIES.size
        if not offset:
            return f"a peer of another cluster, or with other founders; ours is {describe(ours)}"
        theirs, _ = unpack_names(data, offset)
        return f"the peer's founding configuration is {describe(theirs)}, ours is {describe(ours)}"


def describe(names: Sequence[str]) -> str:
    """A cluster and its founders, for an error message."""
    return f"cluster {names[0]!r}" + (f" of {', '.join(names[1:])}" if names[1:] else "")


def founders_digest(founders: Sequence[str]) -> int:
    """Return a number from 1 to 65,535 computed from the names; 0 if there are none."""
    return crc32(pack_names("", founders)) % 0xFFFF + 1 if founders else 0


def pack_names(cluster: str, founders: Sequence[str]) -> bytes:
    """The bytes of the cluster's name and its founders' names."""
    parts = [bytes([len(founders) + 1])]
    for name in (cluster, *founders):
        encoded = name.encode()
        if len(encoded) > NAME_BYTES_MAX:
            raise ValueError(f"a name of {len(encoded)} bytes; the limit is {NAME_BYTES_MAX}")
        parts += [bytes([len(encoded)]), encoded]
    return b"".join(parts)


def unpack_names(data: bytes, offset: int) -> tuple[tuple[str, ...], int]:
    """The cluster's name and its founders' names, and the offset after them."""
    [count] = data[offset : offset + 1]
    if not 1 <= count <= VOTERS_MAX + 1:
        raise ValueError("not a list of founders")
    names = []
    offset += 1
    for _ in range(count):
        (length,) = _NAME_LENGTH.unpack_from(data, offset)
        name = data[offset + 1 : offset + 1 + length]
        if len(name) != length:
            raise ValueError("a truncated name")
        names.append(name.decode())
        offset += 1 + length
    return tuple(names), offset


_Encoded = tuple[int, int, bytes]
_TAG_REQUEST_VOTE: Final = 1
_TAG_APPEND_ENTRIES: Final = 3
_TAG_APPEND_REPLY: Final = 4

# A receiver may handle two kinds of messages later, with the sender's next one. It recognizes them
# by their first two bytes and their length. A commit note is an AppendEntries that carries only the
# leader's commit index and needs no reply. A plain success is an AppendReply that acknowledges
# durable entries or confirms a read.
COMMIT_NOTE: Final = bytes([_TAG_APPEND_ENTRIES, _FLAG_2])
COMMIT_NOTE_BYTES: Final = _HEADER.size + _APPEND_ENTRIES.size
PLAIN_SUCCESS: Final = bytes([_TAG_APPEND_REPLY, _FLAG_1])
PLAIN_SUCCESS_BYTES: Final = _HEADER.size + _APPEND_REPLY.size


def _encode_request_vote(codec: MessageCodec, m: RequestVote) -> _Encoded:
    body = _REQUEST_VOTE.pack(m.last_index, m.last_term) + codec.names
    return _TAG_REQUEST_VOTE, m.pre_vote * _FLAG_1 | m.transfer * _FLAG_2, body


def _encode_append_entries(codec: MessageCodec, m: AppendEntries) -> _Encoded:
    body = _APPEND_ENTRIES.pack(m.prev_index, m.prev_term, m.commit, m.round, len(m.entries))
    if m.heartbeat:
        body += codec.names
    if m.entries:
        body += pack_entries(m.entries)
    return _TAG_APPEND_ENTRIES, m.heartbeat * _FLAG_1 | m.no_reply * _FLAG_2, body


_ENCODERS: Final[dict[type, Callable[[MessageCodec, Any], _Encoded]]] = {
    RequestVote: _encode_request_vote,
    VoteReply: lambda _, m: (2, m.pre_vote * _FLAG_1 | m.granted * _FLAG_2, b""),
    AppendEntries: _encode_append_entries,
    AppendReply: lambda _, m: (
        _TAG_APPEND_REPLY,
        m.success * _FLAG_1,
        _APPEND_REPLY.pack(m.index, m.round, m.hint_index, m.hint_term),
    ),
    InstallSnapshot: lambda _, m: (
        5,
        0,
        _INSTALL_SNAPSHOT.pack(m.last_index, m.last_term, m.offset, m.total, m.round) + m.data,
    ),
    SnapshotReply: lambda _, m: (6, 0, _SNAPSHOT_REPLY.pack(m.last_index, m.offset, m.round)),
    TimeoutNow: lambda _, _m: (7, 0, b""),
    ReadIndex: lambda _, m: (8, 0, _READ_INDEX.pack(m.ticket)),
    ReadIndexReply: lambda _, m: (9, 0, _READ_INDEX_REPLY.pack(m.ticket, m.index)),
}


def _fields(layout: struct.Struct, data: bytes, tail: int = 0) -> tuple[int, ...]:
    """Return the fields after the header; exactly `tail` more bytes must follow them."""
    fields: tuple[int, ...] = layout.unpack_from(data, _HEADER.size)
    if len(data) != _HEADER.size + layout.size + tail:
        raise ValueError("a length that does not fit the kind")
    if max(fields, default=0) > NUMBER_MAX:
        raise ValueError("a number out of range")
    return fields


def _after_names(codec: MessageCodec, data: bytes, start: int) -> int:
    """Return the offset after the list of founders, which must match the header's digests."""
    if data.startswith(codec.names, start):
        return start + len(codec.names)
    names, end = unpack_names(data, start)
    founders = _HEADER.unpack_from(data)[2]
    if crc32(names[0].encode()) != codec.digest or founders_digest(names[1:]) != founders:
        raise ValueError("the list of founders contradicts its checksum")
    return end


def _decode_request_vote(codec: MessageCodec, flags: int, term: int, data: bytes) -> RequestVote:
    end = _after_names(codec, data, _HEADER.size + _REQUEST_VOTE.size)
    index, index_term = _fields(_REQUEST_VOTE, data, len(data) - _HEADER.size - _REQUEST_VOTE.size)
    if end != len(data):
        raise ValueError("a length that does not fit the kind")
    return RequestVote(term, index, index_term, bool(flags & _FLAG_1), bool(flags & _FLAG_2))


def _decode_vote_reply(_: MessageCodec, flags: int, term: int, data: bytes) -> VoteReply:
    _fields(_EMPTY, data)
    return VoteReply(term, bool(flags & _FLAG_2), bool(flags & _FLAG_1))


def _decode_append_entries(
    codec: MessageCodec, flags: int, term: int, data: bytes
) -> AppendEntries:
    prev_index, prev_term, commit, round_, count = _APPEND_ENTRIES.unpack_from(data, _HEADER.size)
    if max(prev_index, prev_term, commit, round_) > NUMBER_MAX or count > ENTRIES_MAX:
        raise ValueError("a number out of range")
    heartbeat, no_reply = bool(flags & _FLAG_1), bool(flags & _FLAG_2)
    start = _HEADER.size + _APPEND_ENTRIES.size
    if heartbeat:
        start = _after_names(codec, data, start)
    entries = unpack_entries(data, start, prev_index, prev_term)
    if len(entries) != count or prev_term > term or (entries and entries[-1].term > term):
        raise ValueError("missing entries, or entries newer than the leader's term")
    for entry in entries:
        if entry.kind is not EntryKind.COMMAND:
            codec.check(entry)
    return AppendEntries(term, prev_index, prev_term, commit, round_, entries, heartbeat, no_reply)


def _decode_append_reply(_: MessageCodec, flags: int, term: int, data: bytes) -> AppendReply:
    index, round_, hint_index, hint_term = _APPEND_REPLY.unpack_from(data, _HEADER.size)
    if len(data) != _HEADER.size + _APPEND_REPLY.size:
        raise ValueError("a length that does not fit the kind")
    if max(index, round_, hint_index, hint_term) > NUMBER_MAX:
        raise ValueError("a number out of range")
    return AppendReply(term, bool(flags & _FLAG_1), index, round_, hint_index, hint_term)


def _decode_install_snapshot(
    _: MessageCodec, _flags: int, term: int, data: bytes
) -> InstallSnapshot:
    body = data[_HEADER.size + _INSTALL_SNAPSHOT.size :]
    index, index_term, offset, total, round_ = _fields(_INSTALL_SNAPSHOT, data, len(body))
    if len(body) > CHUNK_BYTES or offset + len(body) > total or index_term > term:
        raise ValueError("a chunk that extends past the end of its snapshot")
    return InstallSnapshot(term, index, index_term, offset, total, round_, body)


_DECODERS: Final[dict[int, Callable[[MessageCodec, int, int, bytes], AnyMessage]]] = {
    _TAG_REQUEST_VOTE: _decode_request_vote,
    2: _decode_vote_reply,
    _TAG_APPEND_ENTRIES: _decode_append_entries,
    _TAG_APPEND_REPLY: _decode_append_reply,
    5: _decode_install_snapshot,
    6: lambda _, _flags, term, data: SnapshotReply(term, *_fields(_SNAPSHOT_REPLY, data)),
    7: lambda _, _flags, term, data: TimeoutNow(term, *_fields(_EMPTY, data)),
    8: lambda _, _flags, term, data: ReadIndex(term, *_fields(_READ_INDEX, data)),
    9: lambda _, _flags, term, data: ReadIndexReply(term, *_fields(_READ_INDEX_REPLY, data)),
}

"""Range: the record in front of each run of session frames in a merged log."""

import struct
from hashlib import blake2b
from typing import Final, NamedTuple, Self

from rt.errors import FrameError
from rt.format.frame import HEADER_BYTES, Encoded, FrameKind, Header, encode_frame, session_tag
from rt.position import Position

DIGEST_BYTES: Final = 16
EMPTY_DIGEST: Final = bytes(DIGEST_BYTES)
_BODY: Final = struct.Struct("<QQQQIHH16s")
_DIGEST_AT: Final = _BODY.size - DIGEST_BYTES
# What the digest covers of the range frame's own header.
_OWN_FIELDS: Final = struct.Struct("<QQqI")
_NAME_BYTES_MAX: Final = 255


class Range(NamedTuple):
    """Consecutive frames of one session that were merged together."""

    instruction: int  # index of the instruction that merged it
    term: int
    time_ns: int  # merge time; never decreases
    session: str
    first: Position  # position of the range's first frame in the session's log
    length: int  # bytes of session frames that follow
    number: int  # number, in the merged stream, of its first message that is not a repeat
    messages: int  # how many messages it adds, not counting repeats
    skip: int  # leading messages that are repeats: neither delivered nor numbered
    digest: bytes = EMPTY_DIGEST  # digest of the merged log up to the end of this range

    def digested(self, previous: bytes, position: int, headers: bytes) -> Self:
        """Return this range with its running digest set.

        Args:
            previous: digest of the merged log so far, 16 bytes; zeros at the start of a log.
            position: this range frame's position in the merged log.
            headers: headers of all the range's session frames, control frames included, 64 bytes
                each. They contain the CRCs of the bodies, so the digest costs time per frame rather
                than per byte.
        """
        digest = blake2b(previous, digest_size=DIGEST_BYTES)
        digest.update(_OWN_FIELDS.pack(position, self.number, self.time_ns, self.messages))
        digest.update(self.body(EMPTY_DIGEST))
        digest.update(headers)
        return self._replace(digest=digest.digest())

    def sealed(self, previous: bytes, position: int, headers: bytes) -> tuple[Self, Encoded]:
        """Return this range with its running digest set, and its frame.

        The result is that of `digested` and then `frame`. This is faster, because it runs for each
        range.
        Arguments as for `digested`.
        """
        unsealed = self.body(EMPTY_DIGEST)
        own = _OWN_FIELDS.pack(position, self.number, self.time_ns, self.messages)
        data = b"".join((previous, own, unsealed, headers))
        digest = blake2b(data, digest_size=DIGEST_BYTES).digest()
        body = unsealed[:_DIGEST_AT] + digest + unsealed[_BODY.size :]
        sealed = tuple.__new__(type(self), (*self[:-1], digest))
        return sealed, encode_frame(
            body, position=position, sequence=self.number, time_ns=self.time_ns,
            messages=self.messages, kind=FrameKind.RANGE, session_tag=session_tag(self.session),
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Bytes of the range frame itself, without the session frames after it."""
        return range_bytes(self.session)

    def body(self, digest: bytes | None = None) -> bytes:
        """Encode the body of the range frame; `digest`, if given, replaces the range's own digest.

        `FrameError` if the session's name is empty or too long.
        """
        name = self.session.encode()
        if not 0 < len(name) <= _NAME_BYTES_MAX:
            raise FrameError("the session's name does not fit a range frame")
        fields = (self.instruction, self.term, self.first, self.length, self.skip, len(name), 0)
        return _BODY.pack(*fields, self.digest if digest is None else digest) + name

    def frame(self, position: int) -> Encoded:
        """Encode the range frame for its position in the merged log."""
        return encode_frame(
            self.body(),
            position=position,
            sequence=self.number,
            time_ns=self.time_ns,
            messages=self.messages,
            kind=FrameKind.RANGE,
            session_tag=session_tag(self.session),
        )


def range_bytes(session: str) -> int:
    """Return the size of a session's range frame, without the session frames after it."""
    return (HEADER_BYTES + _BODY.size + len(session) + 7) & ~7  # frames are padded to 8 bytes


def decode_range(header: Header, body: bytes | memoryview) -> Range:
    """Decode a range frame's body, whose CRC was checked; `FrameError` if the body is not valid."""
    if header.kind != FrameKind.RANGE or len(body) < _BODY.size:
        raise FrameError("no range frame")
    instruction, term, first, length, skip, name_length, zero, digest = _BODY.unpack_from(body)
    name = bytes(body[_BODY.size :])
    if zero or len(name) != name_length or not name or first >> 63 or length % 8 or not length:
        raise FrameError("the range frame contradicts itself")
    try:
        session = name.decode("ascii")
    except UnicodeDecodeError:
        raise FrameError("the session's name in a range frame is not ASCII") from None
    return Range(
        instruction, term, header.time_ns, session, Position(first), length,
        header.sequence, header.messages, skip, digest,
    )  # fmt: skip

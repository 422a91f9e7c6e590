"""The state machine of HTTP streams: how each message of the merged log changes them.

A gateway proposes by publishing, and the merged log decides. Every gateway of a stream executes the
same messages in the same order, so all of them reach the same state and give the same answers. This
module is pure: no clock, no file, no thread.
"""

import json
import re
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from rt.format.message import Message
from rt.position import START, Position

HEADER: Final = "durable-stream"  # of each message that a gateway publishes
OCTETS: Final = "application/octet-stream"
JSON: Final = "application/json"
# Producers of one stream; the one that has been silent for longest is forgotten first.
PRODUCERS_MAX: Final = 1000
TEXT_MAX: Final = 256  # characters of a producer's id, a sequence or a content type
_TYPE: Final = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+ *(;[ -~]*)?", re.ASCII)
INTEGER_MAX: Final = 2**53 - 1  # what JavaScript can count


class Producer(NamedTuple):
    """The producer of an append and the append's number, by which a repetition is recognized."""

    id: str
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class StreamChange:
    """What one message changes in a stream; data is in the message's payload.

    Args:
        do: `create`, `append` or `delete`.
        type: the content type that the request names; empty if it names none.
        producer: the producer of an append that may be repeated; None for any other change.
        seq: the writer's own sequence, compared as text; empty if it has none.
        closes: whether the change closes the stream.
        has_data: whether the payload is part of the stream.
        part: which message of an append this is, from 0: an append may have several.
        last: whether this is the last message of the append; for a `create`, whether no append
            comes with it.
        ttl: seconds without a request after which the stream expires; -1 for never.
        expires: when the stream expires, in RFC 3339; empty for never.
        maker: identifies the request of a `create` and of the appends that come with it; a repeated
            request has the same maker.
        ended: for the `delete` of an expired stream, where that stream ended; otherwise -1.
    """

    do: str
    type: str = ""
    producer: Producer | None = None
    seq: str = ""
    closes: bool = False
    has_data: bool = True
    part: int = 0
    last: bool = True
    ttl: int = -1
    expires: str = ""
    maker: str = ""
    ended: int = -1

    def encode(self) -> dict[str, bytes]:
        """Return the change as headers of its message."""
        values = {name: getattr(self, name) for name in _FIELDS}
        left = {name: value for name, value in values.items() if value != _DEFAULTS.get(name)}
        return {HEADER: json.dumps(left, separators=(",", ":")).encode()}


_DEFAULTS: Final[dict[str, Any]] = {
    name: each.default for name, each in StreamChange.__dataclass_fields__.items() if name != "do"
}
_FIELDS: Final = tuple(StreamChange.__dataclass_fields__)


def change_of(message: Message) -> StreamChange | None:
    """Return the change that a message makes; None if its header is not a gateway's.

    A message without the header is an append by a program that does not use the gateway.
    """
    raw = message.headers.get(HEADER)
    if raw is None:
        return StreamChange("append")
    try:
        values = json.loads(raw)
        change = StreamChange(**{name: values[name] for name in _FIELDS if name in values})
        if change.producer is not None:
            change = replace(change, producer=Producer(*change.producer))
        return change if _is_sound(change) else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _is_sound(change: StreamChange) -> bool:
    sender = change.producer
    is_producer = sender is None or (
        isinstance(sender.id, str)
        and len(sender.id) <= TEXT_MAX
        and _counts(sender.epoch)
        and _counts(sender.seq)
    )
    texts = change.type, change.seq, change.expires, change.maker
    return (
        is_producer
        and change.do in {"create", "append", "delete"}
        and all(isinstance(each, str) and len(each) <= TEXT_MAX for each in texts)
        and (not change.type or is_media_type(change.type))
        and (not change.expires or time_of(change.expires) is not None)
        and all(isinstance(each, bool) for each in (change.closes, change.has_data, change.last))
        and all(type(each) is int for each in (change.part, change.ttl, change.ended))
    )


def _counts(value: object) -> bool:
    return type(value) is int and 0 <= value <= INTEGER_MAX


@dataclass(slots=True)
class Heard:
    """The last append of a producer, and how many of its messages have arrived."""

    epoch: int
    seq: int
    parts: int
    is_whole: bool

    @property
    def next(self) -> tuple[int, int]:
        """The sequence number of the append expected next, and which of its messages is next."""
        return (self.seq + 1, 0) if self.is_whole else (self.seq, self.parts)


@dataclass(slots=True)
class HttpStream:
    """The state of one stream of the gateway.

    Args:
        type: its content type.
        begin: where its messages begin in the merged log.
        tail: where its last message ends in the merged log.
        last: the position of its last message with data; None before the first.
        ttl, expires: as in `StreamChange`.
        is_closed: whether nothing more may be appended.
        closer: the append that closed it, if that append may be repeated.
        seq: the greatest `seq` of an append.
        seq_parts: how many messages of the append with that `seq` have arrived, if more are to
            come; otherwise 0.
        maker: the `maker` of the `create` that made it.
        made: how many messages of the appends that came with the `create` have arrived.
        heard: the last append of each producer; the producer that appended last is at the end.
    """

    type: str
    begin: Position
    tail: Position
    last: Position | None = None
    ttl: int = -1
    expires: str = ""
    is_closed: bool = False
    closer: Producer | None = None
    seq: str = ""
    seq_parts: int = 0
    maker: str = ""
    made: int = 0
    heard: dict[str, Heard] = field(default_factory=dict)

    def copied(self) -> "HttpStream":
        """Return an independent copy."""
        return replace(self, heard={name: replace(each) for name, each in self.heard.items()})


class StreamVerdict(NamedTuple):
    """The outcome of a change, as an HTTP status.

    Args:
        status: 2xx if the change was made, now or earlier by the same request.
        words: why the change was not made.
        is_new: whether the message changed the stream; only then is its payload part of the stream.
        seq: the sequence number of the producer's last append, or the one that was expected
            instead.
        epoch: the producer's current epoch.
        tail: where the stream ends after the change.
    """

    status: int
    words: str = ""
    is_new: bool = False
    seq: int = -1
    epoch: int = -1
    tail: Position = START


class StreamAfter(NamedTuple):
    """The stream after a change (None if it does not exist), and the verdict."""

    stream: HttpStream | None
    verdict: StreamVerdict


def apply(stream: HttpStream | None, change: StreamChange, at: Position) -> StreamAfter:
    """Apply a change to a stream in place; return the stream after it, and the outcome.

    Args:
        stream: the stream before the change; None if it does not exist.
        change: the change to make.
        at: the message's position in the merged log.
    """
    if change.do == "create":
        return _create(stream, change, at)
    if stream is None:
        return StreamAfter(None, StreamVerdict(404, "there is no such stream; PUT makes one"))
    if change.do == "delete":
        if change.ended not in {-1, stream.tail}:
            return StreamAfter(stream, StreamVerdict(409, "the stream was appended to meanwhile"))
        return StreamAfter(None, StreamVerdict(204, is_new=True))
    return StreamAfter(stream, _append(stream, change, at))


def _create(stream: HttpStream | None, change: StreamChange, at: Position) -> StreamAfter:
    kind = change.type or OCTETS
    if stream is None:
        after = Position(at + 1)
        is_closed = change.closes and change.last
        made = HttpStream(kind, after, after, None, change.ttl, change.expires, is_closed)
        made.maker = change.maker
        return StreamAfter(made, StreamVerdict(201, is_new=True))
    asked = essence(kind), change.ttl, change.expires
    is_repeated = change.maker != "" and change.maker == stream.maker
    is_closed = stream.is_closed or (is_repeated and change.closes)  # or its appends will close it
    if (*asked, change.closes) == (essence(stream.type), stream.ttl, stream.expires, is_closed):
        return StreamAfter(stream, StreamVerdict(200))
    words = "the stream is there with another content type, lifetime or closure"
    return StreamAfter(stream, StreamVerdict(409, words))


def _append(stream: HttpStream, change: StreamChange, at: Position) -> StreamVerdict:
    refusal = _closed(stream, change) if stream.is_closed else _mismatch(stream, change)
    sender = change.producer
    verdict = refusal or (None if sender is None else _repeated(stream, change, sender))
    if change.maker and (change.maker, change.part) != (stream.maker, stream.made):
        return StreamVerdict(200)  # its creation was not the first, or the part is there already
    if verdict is None and not _is_in_sequence(stream, change):
        words = f"Stream-Seq is not greater than {stream.seq!r}, which was appended last"
        verdict = StreamVerdict(409, words)
    if verdict is not None:
        return verdict
    if sender is not None:
        _hear(stream, sender, change)
    if change.seq:
        stream.seq, stream.seq_parts = change.seq, 0 if change.last else change.part + 1
    stream.made += bool(change.maker)
    stream.tail = Position(at + 1)
    stream.last = at if change.has_data else stream.last
    if change.closes and change.last:
        stream.is_closed, stream.closer = True, change.producer
    status = 204 if sender is None or not change.has_data else 200
    if sender is None:
        return StreamVerdict(status, is_new=True)
    return StreamVerdict(status, is_new=True, seq=sender.seq, epoch=sender.epoch)


def _is_in_sequence(stream: HttpStream, change: StreamChange) -> bool:
    """Whether a message's `Stream-Seq` and part follow those of the writer's last message."""
    if not change.seq or (change.part and change.producer is not None):
        return True
    if change.part:
        return (change.seq, change.part) == (stream.seq, stream.seq_parts)
    return change.seq > stream.seq


def _closed(stream: HttpStream, change: StreamChange) -> StreamVerdict:
    if change.producer is not None and change.producer == stream.closer:
        return StreamVerdict(204, seq=change.producer.seq, epoch=change.producer.epoch)
    if change.closes and not change.has_data and change.producer is None:
        return StreamVerdict(204)
    return StreamVerdict(409, "the stream is closed; nothing more can be appended")


def _mismatch(stream: HttpStream, change: StreamChange) -> StreamVerdict | None:
    if not change.has_data or not change.type or essence(change.type) == essence(stream.type):
        return None
    return StreamVerdict(409, f"the stream's content type is {stream.type}, not {change.type}")


def _repeated(stream: HttpStream, change: StreamChange, sender: Producer) -> StreamVerdict | None:
    """Return the outcome if a producer's append is not the one expected next; None if it is."""
    known = stream.heard.get(sender.id)
    if known is not None and sender.epoch < known.epoch:
        words = f"producer {sender.id!r} is in epoch {known.epoch}; this is an older one"
        return StreamVerdict(403, words, epoch=known.epoch)
    if known is not None and sender.epoch > known.epoch and sender.seq:
        return StreamVerdict(400, "a new Producer-Epoch begins with Producer-Seq 0")
    if known is None or sender.epoch > known.epoch:
        return None if (sender.seq, change.part) == (0, 0) else _gap(sender, 0)
    is_next = (sender.seq, change.part) == known.next
    if sender.seq <= known.seq and not is_next:
        return StreamVerdict(204, seq=known.seq, epoch=known.epoch)
    return None if is_next else _gap(sender, known.next[0])


def _gap(sender: Producer, expected: int) -> StreamVerdict:
    words = f"Producer-Seq {expected} is expected next, not {sender.seq}"
    return StreamVerdict(409, words, seq=expected, epoch=sender.epoch)


def _hear(stream: HttpStream, sender: Producer, change: StreamChange) -> None:
    stream.heard.pop(sender.id, None)
    stream.heard[sender.id] = Heard(sender.epoch, sender.seq, change.part + 1, change.last)
    if len(stream.heard) > PRODUCERS_MAX:
        del stream.heard[next(iter(stream.heard))]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


# Python's default decoder accepts NaN, and refuses a number of 5,000 digits. This one refuses NaN,
# and accepts any number, since it converts none.
DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)


def is_media_type(kind: str) -> bool:
    """Whether a text can be a content type.

    >>> is_media_type("text/plain; charset=utf-8"), is_media_type("text")
    (True, False)
    """
    return _TYPE.fullmatch(kind) is not None


def time_of(text: str) -> datetime | None:
    """Parse a time in RFC 3339; None if the text is not one."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None and text.isascii() and "T" in text.upper() else None


def essence(kind: str) -> str:
    """Return a content type without its parameters, in lower case.

    >>> essence("Text/Plain; charset=utf-8")
    'text/plain'
    """
    return kind.partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    """Whether a content type is JSON; a JSON stream keeps the boundaries of its messages."""
    return essence(kind) == JSON

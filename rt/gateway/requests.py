"""Parses the headers and bodies of requests."""

import re
from collections.abc import Mapping
from typing import Final

from rt.errors import Misuse
from rt.gateway.model import (
    DECODER,
    INTEGER_MAX,
    OCTETS,
    TEXT_MAX,
    Producer,
    StreamChange,
    essence,
    is_json,
    is_media_type,
    time_of,
)  # fmt: skip
from rt.position import Position

ELEMENTS_MAX: Final = 10_000  # of an array, or in lines or frames: each is a message
LINES: Final = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl"})
FRAMES: Final = "application/vnd.rt.messages"  # each after its length: four bytes, big-endian
_COUNT: Final = re.compile(r"0|[1-9][0-9]{0,15}")
_OFFSET: Final = re.compile(r"[0-9a-f]{16}")


def is_closing(headers: Mapping[str, str]) -> bool:
    """Whether a request closes its stream: whether the header `Stream-Closed` is `true`."""
    return headers.get("stream-closed", "").strip().lower() == "true"


def content_type(headers: Mapping[str, str]) -> str:
    """Return a request's content type, "" if it names none; `Misuse` if the type is malformed."""
    kind = headers.get("content-type", "").strip()
    if kind and not (is_media_type(kind) and len(kind) <= TEXT_MAX):
        raise Misuse(f"Content-Type {kind[:60]!r} is not a media type")
    return kind


def producer(headers: Mapping[str, str]) -> Producer | None:
    """Return the producer that headers name, or None; `Misuse` if they are incomplete or wrong."""
    names = ("producer-id", "producer-epoch", "producer-seq")
    given = [headers.get(name) for name in names]
    if given == [None, None, None]:
        return None
    sender, epoch, seq = given
    if sender is None or epoch is None or seq is None:
        raise Misuse("Producer-Id, Producer-Epoch and Producer-Seq go together; one is missing")
    if not sender or len(sender) > TEXT_MAX:
        raise Misuse(f"Producer-Id has 1 to {TEXT_MAX} characters")
    return Producer(sender, _count(epoch, "Producer-Epoch"), _count(seq, "Producer-Seq"))


def sequence(headers: Mapping[str, str]) -> str:
    """Return the writer's own sequence number, `Stream-Seq`, as text; "" if there is none."""
    seq = headers.get("stream-seq", "")
    if len(seq) > TEXT_MAX:
        raise Misuse(f"Stream-Seq has at most {TEXT_MAX} characters")
    return seq


def _count(text: str, name: str) -> int:
    if not _COUNT.fullmatch(text) or int(text) > INTEGER_MAX:
        raise Misuse(f"{name} is {text[:30]!r}; use a whole number from 0 to {INTEGER_MAX}")
    return int(text)


def creation(headers: Mapping[str, str]) -> StreamChange:
    """Return the change that creates a stream; `Misuse` if a header is wrong."""
    ttl, expires = headers.get("stream-ttl"), headers.get("stream-expires-at")
    if ttl is not None and expires is not None:
        raise Misuse("Stream-TTL and Stream-Expires-At exclude each other")
    if expires is not None and time_of(expires) is None:
        words = f"Stream-Expires-At is {expires[:40]!r}; use a time such as 2030-01-31T12:00:00Z"
        raise Misuse(words)
    return StreamChange(
        "create",
        type=content_type(headers) or OCTETS,
        closes=is_closing(headers),
        has_data=False,
        ttl=-1 if ttl is None else _count(ttl, "Stream-TTL"),
        expires=expires or "",
    )


def stream_type(kind: str, stream: str) -> str:
    """Return the content type of the messages in a body: the stream's if the body packs several.

    >>> stream_type("application/x-ndjson", "application/json")
    'application/json'
    """
    is_batch = essence(kind) == FRAMES or (essence(kind) in LINES and is_json(stream))
    return stream if is_batch else kind


def split(kind: str, stream: str, body: bytes) -> list[bytes]:
    """Return the messages in a body: several in frames, lines or a JSON array, otherwise one.

    Args:
        kind: the content type of the body.
        stream: the content type of the stream.
        body: the body, not empty.

    Raises:
        Misuse: the body does not have the format of its content type, or has no message.
    """
    if essence(kind) == FRAMES:
        found = _frames(body)
    elif essence(kind) in LINES and is_json(stream):
        found = [each for line in body.split(b"\n") if (each := line.strip(b" \t\r"))]
    elif essence(kind) == essence(stream):
        return messages_of(kind, body)
    else:
        return [body]
    if not 0 < len(found) <= ELEMENTS_MAX:
        raise Misuse(f"the body has {len(found):,} messages; send 1 to {ELEMENTS_MAX:,}")
    if is_json(stream):
        for number, each in enumerate(found, 1):
            _demand_json(each, number)
    return found


def _demand_json(message: bytes, number: int) -> None:
    try:
        DECODER.decode(message.decode())
    except (ValueError, RecursionError):
        raise Misuse(f"message {number:,} of the body is not valid JSON") from None


def _frames(body: bytes) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    while at < len(body):
        begin = at + 4
        at = begin + int.from_bytes(body[at:begin], "big")
        if begin > len(body) or at > len(body):
            words = "its length, in four bytes, goes beyond the body"
            raise Misuse(f"message {len(found) + 1:,} of the body is not whole: {words}")
        found.append(body[begin:at])
    return found


def preference(headers: Mapping[str, str]) -> tuple[bool, float | None]:
    """Parse `Prefer`: whether to respond before the outcome is known, and how many seconds to wait.

    Unknown preferences are ignored, as RFC 7240 requires.

    >>> preference({"prefer": "respond-async, wait=10"})
    (True, 10.0)
    """
    wait_s, is_async = None, False
    for each in headers.get("prefer", "").split(","):
        name, _, value = each.partition(";")[0].strip().lower().partition("=")
        if name == "respond-async":
            is_async = True
        elif name == "wait" and _COUNT.fullmatch(value):
            wait_s = float(value)
    return is_async, wait_s


def number(query: Mapping[str, str], name: str, default: float, most: float) -> float:
    """Return a query parameter that is a number from 0 to `most`; `Misuse` for anything else."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.replace(".", "", 1).isdigit() and float(text) <= most):
        raise Misuse(f"{name} is {text[:20]!r}; use a number from 0 to {most:g}")
    return float(text)


def messages_of(kind: str, body: bytes, *, is_creation: bool = False) -> list[bytes]:
    """Return the messages in a body: one, or for type JSON the elements of an array.

    Raises:
        Misuse: the type is JSON, and the body is not valid JSON, or an array with no elements or
            with too many. A creation may have an empty array.
    """
    if not is_json(kind):
        return [body] if body else []
    if not body:
        return []
    try:
        text = body.decode().strip()
        value = DECODER.decode(text)
    except (ValueError, RecursionError):
        raise Misuse("the body is not valid JSON") from None
    if not isinstance(value, list):
        return [text.encode()]
    if not value and not is_creation:
        raise Misuse("the body is an empty array: there is nothing to append")
    if len(value) > ELEMENTS_MAX:
        raise Misuse(f"an array has at most {ELEMENTS_MAX:,} elements; append it in parts")
    return _elements(text, len(value))


_SPACE: Final = re.compile(r"[ \t\n\r,]*")


def _elements(text: str, count: int) -> list[bytes]:
    """Return the elements of an array as written, since decoding would lose digits."""
    found, at = [], 1
    for _ in range(count):
        begin = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        _value, at = DECODER.raw_decode(text, begin)
        found.append(text[begin:at].encode())
    return found


def offset_text(position: Position) -> str:
    """Return a position as an offset; offsets sort as text.

    >>> offset_text(Position(4096))
    '0000000000001000'
    """
    return f"{int(position):016x}"


def parse_offset(text: str) -> Position:
    """Parse an offset into a position; `Misuse` if `text` is malformed."""
    if not _OFFSET.fullmatch(text):
        raise Misuse(f"offset is {text[:40]!r}; use -1, now, last, or a Stream-Next-Offset")
    return Position(int(text, 16))

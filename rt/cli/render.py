"""Render: messages as bytes for a pipe: as they are, one a line, or one JSON object a line."""

import json
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, Final

from rt.format.message import Message
from rt.position import OFFSET_BITS, OFFSET_END, ROLL_BITS, ROLL_END
from rt.text import text_field, time_text


class Output(StrEnum):
    """What `rt subscribe` writes."""

    RAW = "raw"
    LINES = "lines"
    JSON = "json"


def render_payloads(output: Output, payloads: list[bytes]) -> bytes:
    """Return the bytes for payloads alone; not for JSON, which tells more of a message."""
    if output is Output.RAW:
        return b"".join(payloads)
    return b"\n".join((*payloads, b"")) if payloads else b""


def render_messages(output: Output, messages: Iterable[Message]) -> bytes:
    """Return the bytes for messages."""
    if output is Output.JSON:
        return b"".join(map(json_line, messages))
    return render_payloads(output, [message.payload for message in messages])


def json_line(message: Message) -> bytes:
    """Return all there is to know of a message as one line of JSON.

    A payload or key that is no UTF-8 stands in `payload_base64` or `key_base64` instead.
    """
    at, merged, key = message.at, "", ""
    if message.merge_time_ns is not None:
        merged = f',"merge_time_ns":{message.merge_time_ns}'
        merged += f',"merge_time":"{time_text(message.merge_time_ns)}"'
    if message.key:
        key = _field("key", message.key)
    return (
        f'{{"position":"{_place(at)}","next_position":"{_place(at + 1)}",'
        f'"session":"{message.session}","sequence":{message.sequence},"number":{message.number},'
        f'"time_ns":{message.time_ns},"time":"{time_text(message.time_ns)}"{merged}'
        f"{key}{_field('payload', message.payload)}}}\n"
    ).encode()


def _place(at: int) -> str:
    # as str(Position(at)), which a million messages a second cannot afford twice
    file = at >> OFFSET_BITS
    return f"{file >> ROLL_BITS}.{file & (ROLL_END - 1)}.{at & (OFFSET_END - 1)}"


def _field(name: str, value: bytes) -> str:
    ((found, text),) = text_field(name, value).items()
    return f',"{found}":{_quoted(text)}'


_quoted: Final[Callable[[Any], str]] = json.JSONEncoder(ensure_ascii=False).encode

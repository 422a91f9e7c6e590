"""A message as one line of JSON: what `rt subscribe --output json` and the gateway write."""

import json
from collections.abc import Callable
from typing import Any, Final

from rt.format.message import Message
from rt.position import OFFSET_BITS, OFFSET_END, ROLL_BITS, ROLL_END
from rt.text import headers_fields, json_safe, json_text, text_field, time_text


def json_line(message: Message) -> bytes:
    """Return a message with all of its fields as one line of JSON.

    A payload, key or header that is not UTF-8 is in `payload_base64`, `key_base64` or
    `headers_base64` instead.
    """
    at, merged, key, headers = message.at, "", "", ""
    if message.merge_time_ns is not None:
        merged = f',"merge_time_ns":{message.merge_time_ns}'
        merged += f',"merge_time":"{time_text(message.merge_time_ns)}"'
    if message.key:
        key = _field("key", message.key)
    if message.headers:
        headers = "," + json_text(headers_fields(message.headers))[1:-1]
    return (
        f'{{"position":"{_place(at)}","next_position":"{_place(at + 1)}",'
        f'"session":"{message.session}","sequence":{message.sequence},"number":{message.number},'
        f'"time_ns":{message.time_ns},"time":"{time_text(message.time_ns)}"{merged}'
        f"{key}{headers}{_field('payload', message.payload)}}}\n"
    ).encode()


def _place(at: int) -> str:
    # the same as str(Position(at)), which is too slow for a million messages a second
    file = at >> OFFSET_BITS
    return f"{file >> ROLL_BITS}.{file & (ROLL_END - 1)}.{at & (OFFSET_END - 1)}"


def _field(name: str, value: bytes) -> str:
    ((found, text),) = text_field(name, value).items()
    quoted = _quoted(text)
    return (
        f',"{found}":{quoted if quoted.isascii() and quoted.isprintable() else json_safe(quoted)}'
    )


_quoted: Final[Callable[[Any], str]] = json.JSONEncoder(ensure_ascii=False).encode

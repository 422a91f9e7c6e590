"""Render: converts messages to output: raw bytes, lines, or one JSON object a line."""

from collections.abc import Iterable
from enum import StrEnum

from rt.format.json_line import json_line
from rt.format.message import Message
from rt.text import printable


class Output(StrEnum):
    """The output format of `rt subscribe`."""

    RAW = "raw"
    LINES = "lines"
    JSON = "json"
    TERMINAL = "terminal"  # lines with control characters escaped


def render_payloads(output: Output, payloads: list[bytes]) -> bytes:
    """Return payloads as bytes in an output format other than JSON, which needs whole messages."""
    if output is Output.RAW:
        return b"".join(payloads)
    if output is Output.TERMINAL:
        payloads = [printable(each.decode(errors="backslashreplace")).encode() for each in payloads]
    return b"\n".join((*payloads, b"")) if payloads else b""


def render_messages(output: Output, messages: Iterable[Message]) -> bytes:
    """Return messages as bytes in the given output format."""
    if output is Output.JSON:
        return b"".join(map(json_line, messages))
    return render_payloads(output, [message.payload for message in messages])

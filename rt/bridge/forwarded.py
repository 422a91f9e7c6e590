"""Forwarded: the headers that name a bridged message's origin and the logs it passed through."""

import json
from collections.abc import Mapping
from typing import Final

from rt.format.message import Message

ORIGIN: Final = "rt-origin"
PATH: Final = "rt-path"
PATH_MAX: Final = 16  # logs that a message may have passed


def path_of(headers: Mapping[str, bytes]) -> list[str]:
    """Return the ids of the logs that a message has passed through; empty if it was not bridged.

    >>> path_of({"rt-path": b"ab,cd"})
    ['ab', 'cd']
    """
    path = headers.get(PATH, b"")
    return path.decode("ascii", "replace").split(",") if path else []


def is_forwarded(path: list[str], target: str, *, chained: bool) -> bool:
    """Whether a bridge forwards a message to the log `target`.

    A message that came through other bridges is forwarded only if `chained` is set, its `path` does
    not contain the target, and it has passed fewer than 16 logs.

    >>> is_forwarded([], "cd", chained=False), is_forwarded(["ab"], "cd", chained=False)
    (True, False)
    >>> is_forwarded(["ab"], "cd", chained=True), is_forwarded(["cd"], "cd", chained=True)
    (True, False)
    """
    return not path or (chained and target not in path and len(path) < PATH_MAX)


def headers_of(message: Message, stream: str, log: str) -> dict[str, bytes]:
    """Return the headers of a forwarded message: those it has, its origin and its path.

    Args:
        message: the message, as read from the log `log`.
        stream: the stream of that log.
        log: the log's id.
    """
    origin = {
        "stream": stream, "session": message.session, "sequence": message.sequence,
        "time_ns": message.time_ns,
    }  # fmt: skip
    path = path_of(message.headers)
    headers = {**message.headers, PATH: ",".join([*path, log]).encode()}
    if not path:  # only the first bridge sets it, over anything a publisher wrote there
        headers[ORIGIN] = json.dumps(origin, separators=(",", ":")).encode()
    return headers

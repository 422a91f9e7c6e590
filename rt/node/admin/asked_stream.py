"""Checks the stream and the log that a request names: a node serves one stream and one log."""

import json

from rt.errors import OTHER_LOG, Refused
from rt.names import shown
from rt.net.exchange import Fields


def demand_stream(own: str, request: Fields, *, is_change: bool) -> None:
    """Refuse a request that names another stream, and a change that names none."""
    named = request.get("stream")
    if named is None and is_change:
        words = f'names no stream; update what made it, or add "stream": {json.dumps(own)} to it'
        raise Refused("stream", f"this node serves the stream {own!r}, and the request {words}")
    if named not in (None, own):
        words = f"this node serves the stream {own!r}, and not {shown(str(named))}"
        raise Refused("stream", f"{words}; ask a node that does, or correct the name")


def demand_log(own: str, request: Fields) -> None:
    """Refuse a request whose positions or claims belong to a log other than the node's.

    A reader may ask a cluster that has taken over the stream while the reader's own copy still ends
    with messages that the new log does not have. Positions in that part mean nothing here.
    """
    if (named := request.get("log", own)) != own:
        words = f"the request is about the log {shown(str(named))}, and this is {own}"
        raise Refused(OTHER_LOG, f"{words}, which continues it or is another one")

"""Question: a connection on which to ask a node about one stream, and about no other."""

import json
import ssl
import time
from collections.abc import Collection
from contextlib import ExitStack
from typing import Final

from rt.errors import PeerError, Refused
from rt.names import shown
from rt.net.authority.identity import CertificateRole
from rt.net.contexts import Contexts, asking, offering
from rt.net.exchange import decode_fields, receive_all, send_all
from rt.net.tls import connect

CONNECT_S: Final = 3.0
_REFUSAL_S: Final = 10.0
_REFUSAL_BYTES_MAX: Final = 16 << 20  # a sentence, or the status of a node with many sessions

Address = tuple[str, int]


def connect_about(
    address: Address,
    contexts: Contexts,
    protocol: str,
    roles: Collection[CertificateRole] = (CertificateRole.NODE,),
    timeout_s: float = CONNECT_S,
) -> ssl.SSLSocket:
    """Dial a node for a question about the stream that the contexts name.

    A node that does not serve the stream is not sent the question: one of an earlier version
    would answer for the stream that it does serve. If that is the stream asked about, which its
    status says, the question is sent on a connection that names none.

    Args:
        address: host and port.
        contexts: our certificate and the authorities we trust; without a stream, a node is asked
            about its only one.
        protocol: the question's ALPN name without a stream.
        roles: the roles that may answer.
        timeout_s: seconds until the connection is made.

    Raises:
        Refused: `stream` if the node says that it does not serve it; otherwise as
            `rt.net.tls.connect`.
        PeerError: the node does not say what it serves, for example because it is stopping;
            otherwise as `rt.net.tls.connect`.
        OSError: as `rt.net.tls.connect`.
    """
    with ExitStack() as undo:
        sock, identity = connect(address, asking(contexts, protocol), timeout_s, roles)
        undo.enter_context(sock)
        if identity.role not in roles:
            raise PeerError(f"{identity.name!r} is not a node")
        if not contexts.stream or sock.selected_alpn_protocol() == f"{protocol}/{contexts.stream}":
            undo.pop_all()
            return sock
        if (refusal := _refusal(sock, address, contexts.stream)) is not None:
            raise refusal
    return connect(address, offering(contexts.current(), protocol), timeout_s, roles)[0]


def _refusal(sock: ssl.SSLSocket, address: Address, stream: str) -> Refused | PeerError | None:
    """Return why a node does not serve a stream: its own sentence, if it is of this version.

    None if it does, and is of an earlier version, whose connections name no stream.
    """
    where, end_s = f"{address[0]}:{address[1]}", time.monotonic() + _REFUSAL_S
    # a query that any version answers without changing anything
    request = {"do": "policy", "stream": stream}
    try:
        send_all(sock, json.dumps(request).encode() + b"\n", end_s)
        answer = decode_fields(receive_all(sock, _REFUSAL_BYTES_MAX, end_s))
    except (OSError, PeerError):
        answer = None
    if not answer:  # it is stopping, or its version answers no such question
        return PeerError(f"{where}: it does not answer about the stream {shown(stream)} now")
    if answer.get("code") == "stopping":
        return Refused("stopping", f"{where}: {answer.get('error')}")
    if answer.get("code") == "stream":
        return Refused("stream", f"{where}: {answer.get('error')}")
    if (own := answer.get("stream")) == stream:
        return None
    if isinstance(own, str):  # a status
        words = f"this node serves the stream {shown(own)}, and not {shown(stream)}"
        return Refused("stream", f"{where}: {words}")
    return Refused("stream", f"{where}: this node does not serve the stream {shown(stream)}")

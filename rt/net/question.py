"""Question: a connection on which to ask a node about one stream, and about no other."""

import json
import ssl
import time
from collections.abc import Collection
from contextlib import ExitStack
from typing import Final

from rt.errors import PeerError, Refused
from rt.names import shown
from rt.net.addresses import Address, address_text
from rt.net.authority.identity import CertificateRole
from rt.net.contexts import Contexts, asking, offering
from rt.net.exchange import Fields, decode_fields, receive_all, send_all
from rt.net.tls import connect

STATUS_ALPN: Final = "rt-status/1"  # which any version of a node answers with its status
CONNECT_S: Final = 3.0
_KNOWING: Final = ("stopping", "stream")  # codes of nodes that name the stream they refuse
_REFUSAL_S: Final = 10.0
_REFUSAL_BYTES_MAX: Final = 16 << 20  # a sentence, or the status of a node with many sessions


def connect_about(
    address: Address,
    contexts: Contexts,
    protocol: str,
    roles: Collection[CertificateRole] = (CertificateRole.NODE,),
    timeout_s: float = CONNECT_S,
) -> ssl.SSLSocket:
    """Dial a node for a question about the stream that the contexts name.

    A node that serves another stream must not get the question, since a node of an earlier version
    would answer for its own stream. If the status of a node of an earlier version shows that it
    serves the right stream, the returned connection names no stream.

    Args:
        address: host and port.
        contexts: our certificate and the authorities we trust; if they name no stream, the node is
            asked about its only one.
        protocol: the question's ALPN name without a stream.
        roles: the roles that may answer.
        timeout_s: seconds to wait for each connection; up to three are made.

    Raises:
        Refused: with code `stream`, the node does not serve the stream; otherwise as for
            `rt.net.tls.connect`.
        PeerError: the node does not say what it serves, for example because it is stopping;
            otherwise as for `rt.net.tls.connect`.
        OSError: as for `rt.net.tls.connect`.
    """
    with ExitStack() as undo:
        sock, identity = connect(address, asking(contexts, protocol), timeout_s, roles)
        undo.enter_context(sock)
        if identity.role not in roles:
            raise PeerError(f"{identity.name!r} is not a node")
        if not contexts.stream or sock.selected_alpn_protocol() == f"{protocol}/{contexts.stream}":
            undo.pop_all()
            return sock
        answer = _policy(sock, contexts.stream)
    if answer and "stream" not in answer and answer.get("code") not in _KNOWING:
        # an earlier version's policy, or its refusal: only its status names the stream
        context = offering(contexts.current(), STATUS_ALPN)
        with connect(address, context, timeout_s, roles)[0] as sock:
            answer = _answer(sock, time.monotonic() + _REFUSAL_S)
    if (refusal := _refusal(answer, address, contexts.stream)) is not None:
        raise refusal
    return connect(address, offering(contexts.current(), protocol), timeout_s, roles)[0]


def _policy(sock: ssl.SSLSocket, stream: str) -> Fields | None:
    """Ask for the policy, which any node may answer about any stream; None without an answer."""
    end_s = time.monotonic() + _REFUSAL_S
    # a query that any version answers without changing anything
    request = {"do": "policy", "stream": stream}
    try:
        send_all(sock, json.dumps(request).encode() + b"\n", end_s)
    except OSError:
        return None
    return _answer(sock, end_s)


def _answer(sock: ssl.SSLSocket, end_s: float) -> Fields | None:
    try:
        return decode_fields(receive_all(sock, _REFUSAL_BYTES_MAX, end_s))
    except (OSError, PeerError):
        return None


def _refusal(answer: Fields | None, address: Address, stream: str) -> Refused | PeerError | None:
    """Return the error that says why a node does not serve a stream; None if it does.

    `answer` is the node's refusal or, from an earlier version, its status; None if none came.
    """
    where = address_text(address)
    if not answer:  # it is stopping, or its version answers no such question
        return PeerError(f"{where}: it does not answer about the stream {shown(stream)} now")
    if (code := answer.get("code")) in _KNOWING:
        return Refused(str(code), f"{where}: {answer.get('error')}")
    if (own := answer.get("stream")) == stream:
        return None
    if isinstance(own, str):  # a status
        words = f"this node serves the stream {shown(own)}, and not {shown(stream)}"
        return Refused("stream", f"{where}: {words}")
    return Refused("stream", f"{where}: this node does not serve the stream {shown(stream)}")

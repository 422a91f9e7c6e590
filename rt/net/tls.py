"""TLS: mutual, version 1.3 only; a refusal is one clear line on both sides.

In TLS 1.3 a client finishes its handshake before the server has checked its certificate, and learns
of a refusal only at its first read. So after the handshake each side reads the other's identity and
sends a *verdict*: a little-endian u16 length, then that many bytes of UTF-8 with the reason for
refusal; length 0 means welcome. `connect` and `accept` return when both verdicts are good.
"""

import errno
import socket
import ssl
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Final

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from rt.errors import PeerError, Refused, spoken
from rt.net.authority.grants import Grants
from rt.net.authority.identity import REFUSED_CODE, CertificateRole, PeerIdentity, read_identity
from rt.net.certificate_watch import certificate_watch
from rt.net.contexts import (
    Contexts,
    TrustingContext,
    asking,
    client_context,
    offering,
    server_context,
)
from rt.net.exchange import set_deadline
from rt.net.tls_errors import describe_tls_error

__all__ = [
    "Contexts",
    "accept",
    "asking",
    "client_context",
    "connect",
    "describe_tls_error",
    "offering",
    "peer_identity",
    "server_context",
]

TIMEOUT_S: Final = 10.0
VERDICT_BYTES_MAX: Final = 512  # one sentence; the length is checked before reading on
LINGER_S: Final = 1.0  # a peer that wants to know why reads it within a round trip
LINGER_READ_BYTES: Final = 64 * 1024  # more than a whole handshake
LINGER_READS_MAX: Final = 16

Approval = Callable[[PeerIdentity], None]  # raises `Refused` unless the peer is served
Approved = Callable[[PeerIdentity], PeerIdentity]  # also returns the peer with its grants

_CLIENT: Final = ExtendedKeyUsageOID.CLIENT_AUTH
_SERVER: Final = ExtendedKeyUsageOID.SERVER_AUTH


def _approve(
    roles: Collection[CertificateRole], admit: Approval, grants: Grants | None, peer: PeerIdentity
) -> PeerIdentity:
    """Return a peer with its grants on this node; `Refused` unless it may be served."""
    if peer.role not in roles:
        served = " or ".join(roles)
        words = f"certificate refused: it is a {peer.role}'s; a {served} is wanted here"
        raise Refused(REFUSED_CODE, words)
    admit(peer)
    return peer if grants is None else grants.granted(peer)


class RefusedByPeer(Refused):
    """The other side refuses our certificate.

    Attributes:
        words: the other side's reason.
        peer: the other side's identity by its certificate, which our authority signed; None if the
            certificate states no identity, or if the peer dialled us.
    """

    def __init__(self, words: str, peer: PeerIdentity | None = None, where: str = "") -> None:
        about = f"{where}: " if where else ""
        super().__init__(REFUSED_CODE, f"{about}the other side says: {words}")
        self.words, self.peer = words, peer


def connect(
    address: tuple[str, int],
    context: ssl.SSLContext,
    timeout_s: float = TIMEOUT_S,
    roles: Collection[CertificateRole] = (CertificateRole.NODE,),
) -> tuple[ssl.SSLSocket, PeerIdentity]:
    """Dial a node and return the connection once both sides have accepted it.

    Each call on the returned socket blocks for at most `timeout_s`; only one thread at a time may
    use it.

    Args:
        address: Host and port; the node's certificate must be for this host.
        context: From `client_context`.
        timeout_s: Seconds for the whole procedure.
        roles: The roles that the other side may have.

    Raises:
        PeerError: TLS failed; one sentence says why.
        Refused: One side refused the other's certificate; one sentence says why.
        TimeoutError: It took too long.
        OSError: There was no answer at the address.
    """
    deadline = time.monotonic() + timeout_s
    host, port = address
    plain = _dial(address, timeout_s)
    with ExitStack() as undo:
        undo.enter_context(plain)
        undo.enter_context(_explained(f"{host}:{port}"))
        sock = undo.enter_context(
            context.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
        )
        approve = partial(_approve, roles, lambda _peer: None, None)
        identity = _establish(sock, deadline, approve)
        # Only the dialling side can dial again with new files.
        change = context.change if isinstance(context, TrustingContext) else lambda: ""
        _watch(sock, identity, f"{host}:{port}", change)
        sock.settimeout(timeout_s)
        undo.pop_all()
    return sock, identity


def _dial(address: tuple[str, int], timeout_s: float) -> socket.socket:
    try:
        return socket.create_connection(address, timeout_s)
    except OSError as error:
        words = f"no answer from {address[0]}:{address[1]} ({spoken(error)})"
        raise OSError(error.errno or errno.ETIMEDOUT, words) from error
    except UnicodeError as error:  # a label of a name has 63 characters at most
        raise PeerError(f"no answer from {address[0]}:{address[1]} (no host name)") from error


def accept(
    plain: socket.socket,
    context: ssl.SSLContext,
    timeout_s: float = TIMEOUT_S,
    *,
    roles: Collection[CertificateRole] = tuple(CertificateRole),
    admit: Approval = lambda _peer: None,
    grants: Grants | None = None,
    wrapped: Callable[[ssl.SSLSocket], None] = lambda _sock: None,
    change: Callable[[PeerIdentity], str] = lambda _peer: "",
) -> tuple[ssl.SSLSocket, PeerIdentity]:
    """Turn an accepted connection into a TLS one, or end it so that both sides know why.

    Each call on the returned socket blocks for at most `timeout_s`; only one thread at a time may
    use it.

    Args:
        plain: What a listening socket accepted; it is closed on any error.
        context: From `server_context`.
        timeout_s: Seconds for the whole procedure.
        roles: The roles served here.
        admit: Raises `Refused` if a peer with this identity is not served now.
        grants: What publishers and subscribers may do; None gives peers no grants. A connection
            ends when the grants of its peer change.
        wrapped: Called with the TLS socket before the handshake, so that another thread can end it.
        change: Returns why an admitted connection must end; "" while it may continue. Called
            several times a second, by another thread.

    Raises:
        PeerError: TLS failed, or the peer hung up; one sentence says why.
        Refused: One side refused the other's certificate; one sentence says why.
        TimeoutError: It took too long.
    """
    deadline = time.monotonic() + timeout_s
    with ExitStack() as undo:
        undo.enter_context(plain)
        where = _address_of(plain)
        undo.enter_context(_explained(where))
        sock = undo.enter_context(
            context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        )
        wrapped(sock)
        # The grants are read before the peer hears that it is welcome, so a change after that ends
        # the connection.
        granted = _establish(sock, deadline, partial(_approve, roles, admit, grants))
        _watch(
            sock, granted, where,
            lambda: _change_of_grants(grants, granted) or change(granted),
        )  # fmt: skip
        sock.settimeout(timeout_s)
        undo.pop_all()
    return sock, granted


def peer_identity(sock: ssl.SSLSocket) -> PeerIdentity:
    """Return the identity of the other side, from its verified certificate.

    Raises:
        Refused: There is no certificate, or it lacks a required field.
    """
    der = sock.getpeercert(binary_form=True)
    if der is None:
        raise Refused(REFUSED_CODE, "the other side sent no certificate; set its cert and key")
    identity = read_identity(der, _CLIENT if sock.server_side else _SERVER)
    if isinstance(sock.context, TrustingContext):
        sock.context.trust.refresh()
        if why := sock.context.trust.revocation(x509.load_der_x509_certificate(der)):
            raise Refused(REFUSED_CODE, f"certificate refused: {why}")
    return identity


def _watch(
    sock: ssl.SSLSocket, identity: PeerIdentity, where: str, change: Callable[[], str]
) -> None:
    """From now on, end a connection when a certificate becomes invalid or our own files change."""
    context, der = sock.context, sock.getpeercert(binary_form=True)
    if isinstance(context, TrustingContext) and der is not None:
        certificate = x509.load_der_x509_certificate(der)
        name = f"{identity.role} {identity.name} at {where}"
        certificate_watch.watch(sock, name, certificate, context.trust, change)


def _change_of_grants(grants: Grants | None, granted: PeerIdentity) -> str:
    # no grant concerns a node, and a process may have hundreds of connections with nodes
    is_as_before = grants is None or granted.is_node or grants.is_as_before(granted)
    return "" if is_as_before else "what it is granted has changed"


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Turn any failure of a handshake into one line that says where and why."""
    try:
        yield
    except TimeoutError as error:
        raise TimeoutError(f"{where}: TLS was not agreed on in time; is the peer busy?") from error
    except OSError as error:
        raise PeerError(f"{where}: {describe_tls_error(error)}") from error
    except PeerError as error:
        raise PeerError(f"{where}: {error}") from error
    except RefusedByPeer as error:
        raise RefusedByPeer(error.words, error.peer, where) from error
    except Refused as error:
        raise Refused(error.code, f"{where}: {error}") from error


def _establish(sock: ssl.SSLSocket, deadline: float, approve: Approved) -> PeerIdentity:
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _agree(sock, deadline, approve)
    except (OSError, PeerError, Refused):
        _linger(sock, deadline)
        raise


def _agree(sock: ssl.SSLSocket, deadline: float, approve: Approved) -> PeerIdentity:
    set_deadline(sock, deadline)
    sock.do_handshake()
    if not sock.server_side:
        # first, so that a refusal never collides with a write of ours
        try:
            _hear_verdict(sock, deadline)
        except RefusedByPeer as refusal:
            with suppress(Refused):
                refusal.peer = peer_identity(sock)
            raise
        return _say_verdict(sock, deadline, approve)
    identity = _say_verdict(sock, deadline, approve)
    _hear_verdict(sock, deadline)
    return identity


def _say_verdict(sock: ssl.SSLSocket, deadline: float, approve: Approved) -> PeerIdentity:
    set_deadline(sock, deadline)
    try:
        identity = approve(peer_identity(sock))
    except Refused as error:
        words_sent = str(error).encode()[:VERDICT_BYTES_MAX]
        sock.sendall(len(words_sent).to_bytes(2, "little") + words_sent)
        raise
    sock.sendall(bytes(2))
    return identity


def _hear_verdict(sock: ssl.SSLSocket, deadline: float) -> None:
    length = int.from_bytes(_receive(sock, 2, deadline), "little")
    if length > VERDICT_BYTES_MAX:
        raise PeerError(f"its verdict claims {length} bytes; it does not speak our protocol")
    if length:
        words = ascii(_receive(sock, length, deadline).decode(errors="replace"))[1:-1]
        raise RefusedByPeer(words)


def _receive(sock: ssl.SSLSocket, length: int, deadline: float) -> bytes:
    received = b""
    while len(received) < length:
        set_deadline(sock, deadline)
        part = sock.recv(length - len(received))
        if not part:
            raise PeerError("the other side hung up before both had agreed; its log says why")
        received += part
    return received


def _linger(sock: ssl.SSLSocket, deadline: float) -> None:
    """Stop sending, and let the peer read the reason, which closing at once might discard."""
    end = min(deadline, time.monotonic() + LINGER_S)
    with suppress(OSError):  # whatever happens now, the reason is already known
        sock.shutdown(socket.SHUT_WR)
        for _ in range(LINGER_READS_MAX):
            set_deadline(sock, end)
            if not sock.recv(LINGER_READ_BYTES):
                return


def _address_of(plain: socket.socket) -> str:
    try:
        host, port, *_ = plain.getpeername()
    except OSError as error:
        raise PeerError("a client hung up before TLS began") from error
    return f"{host}:{port}"

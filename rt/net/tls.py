"""TLS: mutual, version 1.3 only; a refusal is one clear line on both sides.

In TLS 1.3 a client has finished its handshake before the server has looked at its certificate, and
learns of a refusal only at its first read. So each side, after the handshake and after reading the
other's identity, sends a *verdict*: a u16 length, little endian, and that many bytes of UTF-8 that
say why not; length 0 means welcome. `connect` and `accept` return when both verdicts are good.
"""

import errno
import os
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Final

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from rt.errors import Misuse, PeerError, Refused, spoken
from rt.net.certificates import CertificateFiles, renewal_warning
from rt.net.exchange import set_deadline
from rt.net.identity import REFUSED_CODE, CertificateRole, PeerIdentity, read_identity
from rt.net.live import live_connections
from rt.net.tls_errors import describe_tls_error
from rt.net.trust import FileStamp, Trust, file_stamp, trust_of

__all__ = [
    "Contexts",
    "accept",
    "client_context",
    "connect",
    "describe_tls_error",
    "offering",
    "peer_identity",
    "server_context",
]

TIMEOUT_S: Final = 10.0
VERDICT_BYTES_MAX: Final = 512  # a sentence; the length is checked against this before reading on
LINGER_S: Final = 1.0  # a peer that wants to know why reads it in a round trip
LINGER_READ_BYTES: Final = 64 * 1024  # more than a whole handshake
LINGER_READS_MAX: Final = 16

Approval = Callable[[PeerIdentity], None]  # raises `Refused` unless the peer is served

_CLIENT: Final = ExtendedKeyUsageOID.CLIENT_AUTH
_SERVER: Final = ExtendedKeyUsageOID.SERVER_AUTH


class TrustingContext(ssl.SSLContext):
    """A context that knows by which authorities it trusts its peers, and what replaces it.

    Attributes:
        trust: authorities and revocations.
        owner: makes a new context when the files change; None if nothing does.
    """

    trust: Trust
    owner: "weakref.ref[Contexts] | None" = None

    def is_outdated(self) -> bool:
        """Whether there is a newer context, made from newer files."""
        owner = self.owner() if self.owner is not None else None
        return owner is not None and owner.current() is not self


def server_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """Return a context for the side that is dialled.

    Args:
        ca: Path of the authority's certificate, the only one that peers are verified by.
        cert: Path of our own certificate.
        key: Path of its private key.

    Raises:
        Misuse: A file is missing, not what it should be, or the key is readable by everyone.
    """
    context = TrustingContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # no resumption: every connection is verified in full
    return _loaded(context, CertificateFiles(ca, cert, key))


def client_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """Return a context for the side that dials; arguments and errors as for `server_context`."""
    context = TrustingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = True
    context.hostname_checks_common_name = False
    return _loaded(context, CertificateFiles(ca, cert, key))


def offering(context: ssl.SSLContext, *protocols: str) -> ssl.SSLContext:
    """Let a context offer protocols by ALPN, so that one port can serve several of them."""
    context.set_alpn_protocols(list(protocols))
    return context


class Contexts:
    """A context that is loaded again when its files change, so that renewal needs no restart.

    Files that cannot be loaded, such as a key that was replaced an instant before its certificate,
    leave the last good context in use; `problem` then says what is wrong with them.

    Threads: any thread may call any method. `_lock` guards `_context` and `_stamps`; `problem` is
    replaced as a whole.
    """

    def __init__(
        self,
        files: CertificateFiles,
        make: Callable[[str, str, str], ssl.SSLContext],
    ) -> None:
        self.problem: str | None = None
        self.files = files
        self._make = make
        self._lock = threading.Lock()
        self._stamps = _stamps(files)
        self._context = self._made()
        live_connections.remind(os.path.abspath(files.cert), self.warning)

    def current(self) -> ssl.SSLContext:
        """Return the context to use for the next connection; costs three `stat` calls."""
        with self._lock:
            stamps = _stamps(self.files)
            if stamps != self._stamps:
                try:
                    self._context = self._made()
                except Misuse as error:
                    self.problem = str(error)
                else:
                    self._stamps = stamps
                    self.problem = None
            return self._context

    def warning(self) -> str:
        """Return what an operator has to do about our files; "" if there is nothing."""
        context = self.current()
        trust = context.trust if isinstance(context, TrustingContext) else None
        problem = self.problem or (trust.problem if trust is not None else None)
        return problem or renewal_warning(self.files)

    def _made(self) -> ssl.SSLContext:
        context = self._make(self.files.ca, self.files.cert, self.files.key)
        if isinstance(context, TrustingContext):
            context.owner = weakref.ref(self)
        return context


def _approve(roles: Collection[CertificateRole], admit: Approval, peer: PeerIdentity) -> None:
    """Raise `Refused` unless a peer of this identity is served."""
    if peer.role not in roles:
        served = " or ".join(roles)
        words = f"certificate refused: it is a {peer.role}'s; a {served} is wanted here"
        raise Refused(REFUSED_CODE, words)
    admit(peer)


def _admit_all(_peer: PeerIdentity) -> None:
    """Admit every peer whose certificate is good."""


def connect(
    address: tuple[str, int],
    context: ssl.SSLContext,
    timeout_s: float = TIMEOUT_S,
) -> tuple[ssl.SSLSocket, PeerIdentity]:
    """Dial a node and return the connection once both sides have agreed to it.

    The socket is blocking with `timeout_s` for each call, and for one thread at a time.

    Args:
        address: Host and port; the node's certificate must be for this host.
        context: From `client_context`.
        timeout_s: Seconds for the whole of it.

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
        approve = partial(_approve, (CertificateRole.NODE,), _admit_all)
        identity = _establish(sock, deadline, approve)
        _watch(sock, identity, f"{host}:{port}")
        sock.settimeout(timeout_s)
        undo.pop_all()
    return sock, identity


def _dial(address: tuple[str, int], timeout_s: float) -> socket.socket:
    try:
        return socket.create_connection(address, timeout_s)
    except OSError as error:
        words = f"no answer from {address[0]}:{address[1]} ({spoken(error)})"
        raise OSError(error.errno or errno.ETIMEDOUT, words) from error


def accept(
    plain: socket.socket,
    context: ssl.SSLContext,
    timeout_s: float = TIMEOUT_S,
    *,
    roles: Collection[CertificateRole] = tuple(CertificateRole),
    admit: Approval = _admit_all,
    wrapped: Callable[[ssl.SSLSocket], None] = lambda _sock: None,
) -> tuple[ssl.SSLSocket, PeerIdentity]:
    """Turn an accepted connection into a TLS one, or end it so that both sides know why.

    The socket is blocking with `timeout_s` for each call, and for one thread at a time.

    Args:
        plain: What a listening socket accepted; it is closed on any error.
        context: From `server_context`.
        timeout_s: Seconds for the whole of it.
        roles: The roles served here.
        admit: Raises `Refused` if a peer of this identity is not served now.
        wrapped: Is given the TLS socket before the handshake, which another thread may then end.

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
        identity = _establish(sock, deadline, partial(_approve, roles, admit))
        _watch(sock, identity, where)
        sock.settimeout(timeout_s)
        undo.pop_all()
    return sock, identity


def peer_identity(sock: ssl.SSLSocket) -> PeerIdentity:
    """Return the identity of the other side, read from its verified certificate.

    Raises:
        Refused: There is no certificate, or it does not say what it must.
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


def _watch(sock: ssl.SSLSocket, identity: PeerIdentity, where: str) -> None:
    """End the connection later, when a certificate is no longer good."""
    context, der = sock.context, sock.getpeercert(binary_form=True)
    if isinstance(context, TrustingContext) and der is not None:
        # Only the side that dials can dial again with new files.
        is_outdated = _never if sock.server_side else context.is_outdated
        certificate = x509.load_der_x509_certificate(der)
        name = f"{identity.role} {identity.name} at {where}"
        live_connections.watch(sock, name, certificate, context.trust, is_outdated)


def _never() -> bool:
    return False


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Turn any end of a handshake into one line that says where and why."""
    try:
        yield
    except TimeoutError as error:
        raise TimeoutError(f"{where}: TLS was not agreed on in time; is the peer busy?") from error
    except OSError as error:
        raise PeerError(f"{where}: {describe_tls_error(error)}") from error
    except PeerError as error:
        raise PeerError(f"{where}: {error}") from error
    except Refused as error:
        raise Refused(error.code, f"{where}: {error}") from error


def _establish(sock: ssl.SSLSocket, deadline: float, approve: Approval) -> PeerIdentity:
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _agree(sock, deadline, approve)
    except (OSError, PeerError, Refused):
        _linger(sock, deadline)
        raise


def _agree(sock: ssl.SSLSocket, deadline: float, approve: Approval) -> PeerIdentity:
    set_deadline(sock, deadline)
    sock.do_handshake()
    if not sock.server_side:
        _hear_verdict(sock, deadline)  # first, so that a refusal never meets a write of ours
        return _say_verdict(sock, deadline, approve)
    identity = _say_verdict(sock, deadline, approve)
    _hear_verdict(sock, deadline)
    return identity


def _say_verdict(sock: ssl.SSLSocket, deadline: float, approve: Approval) -> PeerIdentity:
    set_deadline(sock, deadline)
    try:
        identity = peer_identity(sock)
        approve(identity)
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
        raise Refused(REFUSED_CODE, f"the other side says: {words}")


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
    """Stop speaking and let the peer read why: closing at once may reset what was sent."""
    end = min(deadline, time.monotonic() + LINGER_S)
    with suppress(OSError):  # whatever happens now, the reason is known already
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


def _loaded(context: TrustingContext, files: CertificateFiles) -> ssl.SSLContext:
    # TLS 1.3 has neither compression nor renegotiation, so neither has to be turned off.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT  # a default from Python 3.13 only
    _check_files(files)
    try:
        context.load_verify_locations(cafile=files.ca)
    except OSError as error:
        raise Misuse(f"{files.ca}: no certificate can be read from it; copy ca.pem here") from error
    try:
        context.load_cert_chain(files.cert, files.key, password="")  # never ask a terminal
    except OSError as error:
        raise Misuse(
            f"{files.cert} and {files.key}: not a certificate and its unencrypted key; "
            "issue both again"
        ) from error
    context.trust = trust_of(files.ca)
    context.trust.refresh()
    live_connections.start()
    return context


def _check_files(files: CertificateFiles) -> None:
    for path in (files.ca, files.cert, files.key):
        if not os.path.isfile(path):
            raise Misuse(f"{path}: no such file; make it with rt certs, or copy it here")
    # A group may read it: that is how orchestrators hand secrets to an unprivileged program.
    mode = os.stat(files.key).st_mode
    if mode & 0o007:
        raise Misuse(f"{files.key}: everyone may read this key; chmod 600 it, and issue another")
    if mode & 0o020:
        words = "its group may write this key, and so replace it; chmod 600 it, or 640"
        raise Misuse(f"{files.key}: {words}")


def _stamps(files: CertificateFiles) -> tuple[FileStamp, ...]:
    return tuple(map(file_stamp, (files.ca, files.cert, files.key)))

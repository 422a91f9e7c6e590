"""Contexts: the OpenSSL settings of our side of a connection, reloaded when files change."""

import logging
import os
import ssl
import threading
import weakref
from collections.abc import Callable
from typing import Final

from cryptography import x509

from rt.errors import Misuse, spoken
from rt.net.authority.certificates import CertificateFiles, load_certificate, renewal_words
from rt.net.authority.successions import Successions
from rt.net.authority.trust import FileStamp, Trust, file_stamp, trust_of
from rt.net.certificate_watch import CertificateWatch, certificate_watch

_log: Final = logging.getLogger("rt.net")
_ELSEWHERE: Final = "; or name the file that says where it is, with --config or RT_CONFIG"
_announced: Final[dict[str, tuple[FileStamp, ...]]] = {}  # the file versions last logged, by path


class TrustingContext(ssl.SSLContext):
    """A context that knows which authorities it trusts, and whether it was replaced.

    Attributes:
        trust: the authorities and revocations.
        owner: makes a new context when the files change; None if they are not watched.
    """

    trust: Trust
    owner: "weakref.ref[Contexts] | None" = None

    def change(self) -> str:
        """Return why a connection with this context has to be redialled; "" if it need not be."""
        owner = self.owner() if self.owner is not None else None
        is_outdated = owner is not None and owner.has_replaced(self)
        return "our own certificate files have changed" if is_outdated else ""


def server_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """Return a context for the side that is dialled.

    Args:
        ca: Path of the authorities' certificates; peers are verified by nothing else.
        cert: Path of our own certificate.
        key: Path of its private key.

    Raises:
        Misuse: A file is missing or of the wrong kind, or the key is readable by everyone.
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
    """Set the protocols that a context offers by ALPN; return the context."""
    context.set_alpn_protocols(list(protocols))
    return context


def asking(contexts: "Contexts", question: str) -> ssl.SSLContext:
    """Return a TLS context for asking a node a question; the ALPN protocol names the question.

    If `contexts` name a stream, the context offers the question about that stream, and also the
    question without a stream. A node that does not serve the stream selects the latter. Do not send
    that node the question: it might answer for another stream; see `rt.net.question`.
    """
    named = [f"{question}/{contexts.stream}"] if contexts.stream else []
    return offering(contexts.current(), *named, question)


class Contexts:
    """Provides a TLS context, and makes a new one when its files change, without a restart.

    If the files cannot be loaded, for example because a key was replaced a moment before its
    certificate, the last good context stays in use and `problem` says what is wrong.

    Threads: any thread may call any method. `_lock` guards `_context` and `_stamps`; `has_replaced`
    compares both without the lock, and may harmlessly see older values. `successions` is set before
    the first connection. `problem` and `_certificate`, the certificate last read with its file's
    stamp, are replaced as a whole.
    """

    def __init__(
        self,
        files: CertificateFiles,
        make: Callable[[str, str, str], ssl.SSLContext],
        stream: str = "",
        watch: CertificateWatch = certificate_watch,
    ) -> None:
        """Load the files.

        Args:
            files: our certificate files.
            make: makes a context from the paths of `files`.
            stream: the stream that questions are about (`asking`); "" for the only stream of a
                node.
            watch: logs the result of `warning` daily, and checks the files for all connections.
        """
        self.problem: str | None = None
        self.stream = stream
        self.successions: Successions | None = None  # what each connection sends and receives
        self.files = files
        self._make = make
        self._lock = threading.Lock()
        self._watch, self._paths = watch, (files.ca, files.cert, files.key)
        self._stamps = self._look()
        self._certificate: tuple[FileStamp, x509.Certificate | None] = None, None
        self._context = self._made()
        watch.remind(os.path.abspath(files.cert), self.warning)

    def current(self) -> ssl.SSLContext:
        """Return the context to use for the next connection; costs three `stat` calls."""
        with self._lock:
            stamps = self._look()
            try:
                if stamps != self._stamps:
                    self._context = self._made()
                    _announce(self.files, stamps)
                    self._stamps = stamps
            except (Misuse, OSError) as error:
                self.problem = spoken(error)
            else:
                self.problem = None
            return self._context

    def has_replaced(self, context: ssl.SSLContext) -> bool:
        """Whether another context has replaced `context`, because the files have changed.

        A check of `CertificateWatch` looks at the files only once for all its connections.
        """
        is_same = self._context is context and self._stamps == self._watch.stamps(self._paths)
        return not is_same and self.current() is not context

    def renew(self) -> None:
        """Make the context again, when `make` would return another; errors as for `__init__`."""
        with self._lock:
            self._context = self._made()

    def warning(self) -> str:
        """Return what an operator has to do about our files; "" if nothing."""
        context = self.current()
        trust = context.trust if isinstance(context, TrustingContext) else None
        problem = self.problem or (trust.problem if trust is not None else None)
        return problem or self._renewal_warning()

    def _renewal_warning(self) -> str:
        """Return what `renewal_warning` returns; read the certificate only if it has changed.

        This is called several times a second.
        """
        path, stamp = self.files.cert, file_stamp(self.files.cert)
        read, certificate = self._certificate
        if certificate is None or stamp != read:
            try:
                certificate = load_certificate(path)
            except (Misuse, OSError) as error:
                return spoken(error)
            self._certificate = stamp, certificate
        return renewal_words(path, certificate)

    def _look(self) -> tuple[FileStamp, ...]:
        return tuple(map(file_stamp, self._paths))

    def _made(self) -> ssl.SSLContext:
        context = self._make(self.files.ca, self.files.cert, self.files.key)
        if isinstance(context, TrustingContext):
            context.owner = weakref.ref(self)
        return context


def _loaded(context: TrustingContext, files: CertificateFiles) -> ssl.SSLContext:
    # TLS 1.3 has neither compression nor renegotiation, so neither has to be turned off.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT  # a default only from Python 3.13
    _check_files(files)
    try:
        context.load_verify_locations(cafile=files.ca)
    except OSError as error:
        raise Misuse(f"{files.ca}: no certificate can be read from it; copy ca.pem here") from error
    try:
        context.load_cert_chain(files.cert, files.key, password="")  # never prompt on a terminal
    except OSError as error:
        raise Misuse(
            f"{files.cert} and {files.key}: not a certificate and its unencrypted key; "
            "issue both again"
        ) from error
    context.trust = trust_of(files.ca)
    context.trust.refresh()
    certificate_watch.start()
    return context


def _check_files(files: CertificateFiles) -> None:
    name = os.path.basename(files.cert).removesuffix(".pem")
    for path in (files.ca, files.cert, files.key):
        if not os.path.isfile(path):
            command = "init" if path == files.ca else f"issue {name}"
            other = "" if os.path.isdir(os.path.dirname(path)) else _ELSEWHERE
            words = f"no such file; make it with rt certs {command}, or copy it here{other}"
            raise Misuse(f"{path}: {words}")
    demand_private(files.key)


def demand_private(key: str) -> None:
    """Raise `Misuse` if a private key file is open to everyone, or its group may write it.

    The group may read the file: orchestrators hand secrets to unprivileged programs that way.
    """
    mode = os.stat(key).st_mode
    if mode & 0o007:
        raise Misuse(f"{key}: everyone may read this key; chmod 600 it, and issue another")
    if mode & 0o020:
        words = "its group may write this key, and so replace it; chmod 600 it, or 640"
        raise Misuse(f"{key}: {words}")


def _announce(files: CertificateFiles, stamps: tuple[FileStamp, ...]) -> None:
    """Log once that files were reloaded, however many contexts of this process use them."""
    if _announced.get(files.cert) != stamps:
        _announced[files.cert] = stamps
        _log.info("certificate %s was loaded again", files.cert, extra={"event": "certificate"})

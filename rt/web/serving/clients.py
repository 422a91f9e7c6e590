"""WebClients: checks the HTTP port's client certificates, at first and while connected."""

import asyncio
import logging
import os
import socket
import ssl
from typing import Final

from cryptography import x509

from rt.errors import Refused
from rt.net.authority.identity import REFUSED_CODE, UNREADABLE, objection_to_life
from rt.net.authority.trust import Trust, trust_of
from rt.net.certificate_watch import certificate_watch
from rt.net.repeated import RepeatedLines

_log: Final = logging.getLogger("rt.web")


class WebClients:
    """Refuses clients whose certificate is revoked, and disconnects them when it is revoked later.

    As on the cluster's port, `crl.pem` next to the authorities lists revoked certificates.
    Certificates signed by an intermediate authority are verified only by the handshake.

    Threads: only the event loop uses it after `__init__`; `_trust` and `_lines` have locks of their
    own.
    """

    def __init__(self, ca: str) -> None:
        """Read the authorities in `ca`; `Misuse` if they or the list next to them are damaged."""
        self._lines = RepeatedLines(_log)
        self._trust: Trust = trust_of(ca)
        self._known = {each.subject for each in self._trust.facts.authorities}
        certificate_watch.start()

    def watch(self, transport: asyncio.Transport) -> socket.socket | None:
        """Check a client's certificate; end the connection once the certificate is invalid.

        Args:
            transport: the connection, which speaks TLS.

        Returns:
            A second descriptor of the connection, to be closed together with the connection; None
            if the connection is not watched.

        Raises:
            Refused: the certificate is revoked, its authority was removed, or its validity exceeds
                90 days; the log says so.
        """
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        name = f"HTTP client {host}:{port}"
        certificate = _certificate_of(transport.get_extra_info("ssl_object"))
        self._trust.refresh()
        is_known = certificate.issuer in self._known
        why = objection_to_life(certificate)
        why = why or (self._trust.objection(certificate) if is_known else "")
        if why:
            self._lines.flush()
            self._lines.warn(f"{host} {why}", f"{name}: its certificate is refused: {why}")
            raise Refused(REFUSED_CODE, why)
        if not is_known:
            return None
        # The watch ends this socket from its own thread, and the event loop notices.
        second = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        certificate_watch.watch(second, name, certificate, self._trust, lambda: "")
        return second


def _certificate_of(tls: ssl.SSLObject) -> x509.Certificate:
    der = tls.getpeercert(binary_form=True) or b""
    try:
        return x509.load_der_x509_certificate(der)
    except UNREADABLE as error:
        raise Refused(REFUSED_CODE, str(error)) from error

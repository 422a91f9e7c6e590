"""TLS errors: turns what the TLS library raises into one clear sentence for the operator."""

import ssl
from typing import Final

_SAME_AUTHORITY: Final = "give both sides the same ca.pem"
_RENEW: Final = "renew it with rt certs renew"

# Our objection to the other side's certificate, by OpenSSL's X509_V_ERR_* code
# (openssl/x509_vfy.h).
OBJECTIONS: Final = {
    7: f"it was signed by another authority; {_SAME_AUTHORITY}",
    9: "it is not yet valid; compare the clocks of both machines",
    10: f"it has expired; {_RENEW} on that side",
    18: f"it is signed by itself; {_SAME_AUTHORITY}",
    19: f"it was signed by another authority; {_SAME_AUTHORITY}",
    20: f"it was signed by another authority; {_SAME_AUTHORITY}",
    21: f"it was signed by another authority; {_SAME_AUTHORITY}",
    24: "it was signed by a certificate that is no authority; issue it with rt certs issue",
    25: "it was signed by an authority below the authority; issue it with rt certs issue",
    26: "its extended key usage is for another purpose; issue it for the right role",
    62: "it is for another host than the one dialled; issue it with --host",
    64: "it is for another address than the one dialled; issue it with --host",
    79: "it was signed by a certificate that is no authority; issue it with rt certs issue",
}

# What the other side reported before it hung up, by the name of the alert (RFC 8446, 6.2).
ALERTS: Final = {
    "ACCESS_DENIED": "it does not grant access to our certificate",
    "BAD_CERTIFICATE": "it refused our certificate; its log says why",
    "CERTIFICATE_EXPIRED": f"it refused our certificate as expired; {_RENEW}",
    "CERTIFICATE_REQUIRED": "it wants a certificate and we sent none; set ca, cert and key",
    "CERTIFICATE_REVOKED": "it refused our certificate as revoked; issue another",
    "CERTIFICATE_UNKNOWN": "it refused our certificate; its log says why",
    "DECRYPT_ERROR": f"it could not verify our signature; {_SAME_AUTHORITY}",
    "HANDSHAKE_FAILURE": "it found no settings in common; both sides need TLS 1.3",
    "PROTOCOL_VERSION": "it speaks another version of TLS; both sides need TLS 1.3",
    "UNKNOWN_CA": f"it refused our certificate as of another authority; {_SAME_AUTHORITY}",
    "UNSUPPORTED_CERTIFICATE": "it refused our certificate as of another purpose or role",
}

_NOT_TLS: Final = "the other side does not speak TLS; check the address and that both sides use TLS"
_OTHER_VERSION: Final = "the other side offers no TLS 1.3, and nothing older is spoken here"

# Errors of the library, by its reason code.
REASONS: Final = {
    "HTTP_REQUEST": "a plain HTTP request came to a TLS port; the other side must use TLS",
    "NO_PROTOCOLS_AVAILABLE": _OTHER_VERSION,
    "NO_SHARED_CIPHER": _OTHER_VERSION,
    "PACKET_LENGTH_TOO_LONG": _NOT_TLS,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the other side sent no certificate; set its cert and key",
    "RECORD_LAYER_FAILURE": _NOT_TLS,
    "UNEXPECTED_EOF_WHILE_READING": "the other side hung up",
    "UNSUPPORTED_PROTOCOL": _OTHER_VERSION,
    "WRONG_SSL_VERSION": _OTHER_VERSION,
    "WRONG_VERSION_NUMBER": _NOT_TLS,
}


def describe_tls_error(error: OSError) -> str:
    """Return one sentence that says what went wrong and what the operator can do.

    Args:
        error: What a handshake, read or write on a TLS socket raised.

    >>> describe_tls_error(ssl.SSLError(1, "[SSL] strange"))
    'TLS failed: [SSL] strange'
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        found = OBJECTIONS.get(error.verify_code, error.verify_message)
        return f"the other side's certificate was refused: {found}"
    reason = getattr(error, "reason", None) or ""
    alert = reason.partition("ALERT_")[2]
    if alert:
        return f"the other side ended the connection: {ALERTS.get(alert, _spoken(alert))}"
    if isinstance(error, (ssl.SSLEOFError, ConnectionError)):
        return REASONS["UNEXPECTED_EOF_WHILE_READING"]
    return REASONS.get(reason, f"TLS failed: {error.strerror or error}")


def _spoken(alert: str) -> str:
    return f"its TLS alert is '{alert.lower().replace('_', ' ')}'"

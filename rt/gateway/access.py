"""Access: identifies clients by certificate or token, and decides what they may do."""

import hashlib
import re
from collections.abc import Collection
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from cryptography.x509.oid import ExtendedKeyUsageOID
from starlette.requests import Request

from rt.errors import Misuse, Refused
from rt.names import parse_peer
from rt.net.authority.identity import CertificateRole, read_identity
from rt.node.settings.http import is_loopback

_LINE: Final = re.compile(r"(\S+)\s+(read|append)\s+([0-9a-f]{64})")
IDENTITY: Final = "rt.identity"  # in the scope of a request: the holder of its certificate


class Token(NamedTuple):
    """The client that a bearer token or a certificate identifies, and what it may do."""

    name: str
    may_append: bool


def holder_of(der: bytes | None) -> Token | None:
    """Return the holder of a verified client certificate; None if it was not issued for rt."""
    if not der:
        return None
    try:
        found = read_identity(der, ExtendedKeyUsageOID.CLIENT_AUTH)
    except Refused:
        return None
    return Token(found.name, found.role is CertificateRole.PUBLISHER)


class UnknownError(Refused):
    """A request without a valid identity."""


class Access:
    """Decides whether to allow a request. It never changes, so any thread may call it."""

    def __init__(
        self, tokens: dict[str, Token], *, is_open: bool, origins: Collection[str] = ()
    ) -> None:
        """Store the identities.

        Args:
            tokens: the clients with tokens, by the SHA-256 of the token in hexadecimal.
            is_open: whether requests need no identity.
            origins: the origins of web pages that may use the gateway; `*` for all.
        """
        self._tokens, self._is_open, self._origins = tokens, is_open, frozenset(origins)

    def identity(self, request: Request, *, is_reading: bool) -> str:
        """Return the client's name; "" if no identity is required and none is shown.

        Raises:
            UnknownError: the client shows no identity that is known here.
            Refused: the token is for reading only.
        """
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            found = self._tokens.get(hashlib.sha256(token.strip().encode()).hexdigest())
            if found is None:
                raise UnknownError("no-token", "the bearer token is not known here")
            if not is_reading and not found.may_append:
                raise Refused("read-only", f"the token of {found.name} is for reading only")
            return found.name
        holder: Token | None = request.scope.get(IDENTITY)
        if holder is None and not self._is_open:
            raise UnknownError("no-identity", "show a client certificate of rt, or a bearer token")
        if holder is None:
            return ""
        if not is_reading and not holder.may_append:
            raise Refused("read-only", f"{holder.name}'s certificate is not a publisher's")
        return holder.name

    def demand_site(self, request: Request) -> None:
        """Refuse a request that a browser sends for a web page of another site.

        If no identity is required, the request must also address this machine by a loopback name,
        since another site's domain name may resolve to this machine.

        Raises:
            Refused: the request comes from a page of another site, or addresses another name.
        """
        host = request.headers.get("host", "")
        origin = request.headers.get("origin", "")
        is_own = origin.partition("://")[2] == host
        if origin and not (is_own or self.origin(origin)):
            raise Refused("origin", f"pages of {origin[:100]} may not use this gateway: --origins")
        if self._is_open and not is_loopback(urlsplit(f"//{host}").hostname or ""):
            raise Refused("host", f"{host[:100]!r} is not a name of this machine")

    def origin(self, origin: str) -> str:
        """Return the origin if its web pages may use the gateway; otherwise ""."""
        if not origin or not ({origin, "*"} & self._origins):
            return ""
        return origin


def read_tokens(path: str) -> dict[str, Token]:
    """Read a file of tokens: in each line a name, `read` or `append`, and a token's SHA-256.

    Raises:
        Misuse: a line is malformed; the message names the line, and shows no token.
        OSError: the file cannot be read.
    """
    found = {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            text = line.partition("#")[0].strip()
            if not text:
                continue
            match = _LINE.fullmatch(text)
            if match is None:
                raise Misuse(
                    f"{path}, line {number}: write NAME read|append SHA256, where "
                    "`printf %s TOKEN | sha256sum` prints the last"
                )
            found[match[3]] = Token(parse_peer(match[1]), match[2] == "append")
    return found

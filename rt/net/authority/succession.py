"""Succession: an authority's signed statement that another cluster continues a stream's log."""

import base64
import json
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from rt.errors import Misuse, Refused
from rt.names import parse_stream
from rt.net.authority.certificates import is_cluster_id, load_authority
from rt.position import Position
from rt.text import printable

SUCCESSION_BYTES_MAX: Final = 4096  # a quarter of what a node reads as a request
TEXT_MAX: Final = 300  # characters of `by` and of `moved_to`
_HEX: Final = re.compile("[0-9a-f]{32}")
_PURPOSE: Final = b"rt-succession/1\n"  # signed too, so that a signature is valid only for this
_ECDSA: Final = ec.ECDSA(hashes.SHA256())


@dataclass(frozen=True, slots=True)
class Succession:
    """Succession: which log continues another, and from where.

    Both logs are equal up to the cut. Positions and numbers after the cut belong to the new log;
    what the old log has after the cut is not part of the new one.

    Attributes:
        stream: the stream of both logs.
        old: the id of the log that ended.
        new: the id of the log that continues it.
        cut: the position at which the new log continues the old one.
        number: the number of the first message after the cut.
        digest: the running digest at the cut, 32 hexadecimal digits.
        moved_to: the addresses of the cluster that continues the log.
        by: who decided that the new log continues the old one.
        at_ns: when that was decided, ns since the epoch.
    """

    stream: str
    old: str
    new: str
    cut: str
    number: int
    digest: str
    moved_to: str
    by: str
    at_ns: int

    def __post_init__(self) -> None:
        parse_stream(self.stream)
        Position.parse(self.cut)
        if not (
            is_cluster_id(self.old) and is_cluster_id(self.new) and _HEX.fullmatch(self.digest)
        ):
            raise Misuse("a succession names the ids of two logs, and a digest of 32 digits")
        if self.old == self.new or min(self.number, self.at_ns) < 0:
            raise Misuse("a succession names two logs, and no number below 0")
        for text in (self.moved_to, self.by):
            if not 0 < len(text) <= TEXT_MAX or printable(text) != text:
                raise Misuse(f"a succession's texts are printable, of 1 to {TEXT_MAX} characters")

    def signed(self, authority: str) -> str:
        """Return the statement as JSON, signed by an authority.

        Args:
            authority: the directory of the authority's `ca.pem` and `ca.key`.

        Raises:
            Misuse: there is no authority, or its key cannot be used.
        """
        _, key = load_authority(authority)
        signature = base64.b64encode(key.sign(self._signed_bytes(), _ECDSA)).decode()
        return json.dumps({**asdict(self), "signature": signature}, indent=1) + "\n"

    def _signed_bytes(self) -> bytes:
        return _PURPOSE + json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode()


def parse_succession(text: str | bytes, authorities: Collection[x509.Certificate]) -> Succession:
    """Parse a succession, and check that one of `authorities` signed it.

    Raises:
        Misuse: it is malformed.
        Refused: none of these authorities signed it.
    """
    succession, signature = _parsed(text)
    for each in authorities:
        key = each.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            continue
        try:
            key.verify(signature, succession._signed_bytes(), _ECDSA)
        except InvalidSignature:
            continue
        return succession
    raise Refused("certificate", "no authority that is trusted here has signed this succession")


def one_line(text: str | bytes) -> bytes:
    """Return the valid text of a succession as one line, for a file with one on each line."""
    return json.dumps(json.loads(text), separators=(",", ":")).encode() + b"\n"


def said_in(text: str | bytes) -> Succession:
    """Parse a succession without checking its signature; only for files of this machine.

    Raises:
        Misuse: it is malformed.
    """
    return _parsed(text)[0]


def _parsed(text: str | bytes) -> tuple[Succession, bytes]:
    if len(text) > SUCCESSION_BYTES_MAX:
        raise Misuse(f"a succession has at most {SUCCESSION_BYTES_MAX} bytes")
    try:
        fields: dict[str, Any] = json.loads(text)
        signature = base64.b64decode(fields.pop("signature"), validate=True)
        kinds = Succession.__annotations__
        if fields.keys() != kinds.keys() or any(type(fields[n]) is not k for n, k in kinds.items()):
            raise TypeError("a field is missing, unknown or of another type")
        return Succession(**fields), signature
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Misuse(f"this is no succession, as rt standby promote writes it: {error}") from None

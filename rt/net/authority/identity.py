"""Identity: the holder that a certificate names, and the grants of that holder.

A certificate carries its identity as a URI in the subject alternative name, and nowhere else:

    rt://publisher/jfk        role and name, exactly one of these
    rt-cluster:4f1c...        id of a cluster that a node may join; if there is none, any cluster

`rt-cluster` is a scheme of its own, since older versions refuse an `rt` URI that they do not know.
What the holder may do is in a file on the nodes, see `rt.net.authority.grants`. Certificates issued
before that file existed also list it, as URIs that no longer grant anything:

    rt://session/jfk-*        a session glob that a publisher could push
    rt://stream/*             a stream glob that a subscriber could pull

The characters of names and globs are valid in a URI, so nothing needs encoding.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, Protocol

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.x509.oid import ExtendedKeyUsageOID

from rt.errors import Misuse, Refused
from rt.names import NameGlob, PeerName, glob_matches, parse_glob, parse_peer, shown

SCHEME: Final = "rt://"
CLUSTER_SCHEME: Final = "rt-cluster:"
# URIs of at most 80 bytes: 20 KiB, a fifth of the longest chain that OpenSSL accepts
GLOBS_MAX: Final = 256
CLUSTERS_MAX: Final = 64  # named in one certificate
# The limit that docs/SECURITY.md states, and a margin for clock skew; OpenSSL accepts ten years.
VALID_DAYS_MAX: Final = 90
_LIFETIME_MAX: Final = timedelta(days=VALID_DAYS_MAX, hours=1)
REFUSED_CODE: Final = "certificate"
# The errors of the parser, often raised only when a part of a certificate is accessed.
UNREADABLE: Final = (
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


class CertificateRole(StrEnum):
    """The role of a certificate's holder."""

    NODE = "node"
    PUBLISHER = "publisher"
    SUBSCRIBER = "subscriber"
    OPERATOR = "operator"
    MIRROR = "mirror"


_CLIENT: Final = frozenset({ExtendedKeyUsageOID.CLIENT_AUTH})
USAGES: Final = dict.fromkeys(CertificateRole, _CLIENT) | dict.fromkeys(
    (CertificateRole.NODE, CertificateRole.MIRROR), _CLIENT | {ExtendedKeyUsageOID.SERVER_AUTH}
)
SERVING: Final = (CertificateRole.NODE, CertificateRole.MIRROR)  # roles that others dial
# roles that are granted streams to pull
PULLING: Final = (CertificateRole.SUBSCRIBER, CertificateRole.MIRROR)


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """One peer, as its certificate and the grants file describe it.

    Attributes:
        name: The peer's name.
        role: Its role.
        sessions: Globs of the sessions that a publisher may push.
        streams: Globs of the streams that a subscriber or mirror may pull, or a publisher may push
            to; a publisher without any may push to each node's own stream.
        leases: Whether a subscriber may hold leases.
        clusters: Ids of the clusters that a node's certificate names.
    """

    name: PeerName
    role: CertificateRole
    sessions: tuple[NameGlob, ...] = ()
    streams: tuple[NameGlob, ...] = ()
    leases: bool = False
    clusters: tuple[str, ...] = ()

    @property
    def is_node(self) -> bool:
        """Whether the peer is a node; its certificate may limit it to certain clusters."""
        return self.role is CertificateRole.NODE

    @property
    def is_dialled(self) -> bool:
        """Whether others dial the peer, so that its certificate lists its hosts."""
        return self.role in SERVING

    @property
    def may_operate(self) -> bool:
        """Whether the peer may change a stream for everyone, for example its policy."""
        return self.role in (CertificateRole.OPERATOR, CertificateRole.NODE)

    @property
    def title(self) -> str:
        """Role and name, as shown in logs."""
        return f"{self.role} {self.name}"

    def may_push(self, session: str) -> bool:
        """Whether the peer may write a session: nodes may write any, publishers those granted."""
        return self.is_node or (
            self.role is CertificateRole.PUBLISHER and _any_matches(self.sessions, session)
        )

    def may_push_to(self, stream: str, *, is_own: bool) -> bool:
        """Whether the peer may push to a stream: nodes may push to any, publishers as granted.

        Args:
            stream: name of the stream.
            is_own: whether it is the node's own stream, the default for publishers without granted
                streams.
        """
        return self.is_node or _any_matches(self.streams, stream) or (is_own and not self.streams)

    def may_pull(self, stream: str) -> bool:
        """Whether the peer may read a stream: nodes may read any, others those granted."""
        return self.is_node or (self.role in PULLING and _any_matches(self.streams, stream))

    def may_look(self, stream: str) -> bool:
        """Whether the peer may see a stream's policy, plans and history."""
        return self.may_operate or self.may_pull(stream)

    def may_lease(self, stream: str) -> bool:
        """Whether the peer may keep a stream's files from the archiver, by leases of its own."""
        return self.may_operate or (self.leases and self.may_pull(stream))

    @property
    def uri(self) -> str:
        """Role and name as a URI that `parse_identity` reads."""
        return f"{SCHEME}{self.role}/{self.name}"


class NodeObjection(Protocol):
    """Decides whether a node's certificate is refused (`rt.node.host.node_admission`)."""

    def __call__(self, peer: PeerIdentity, *, greets: bool, is_live: bool) -> str:
        """Return why the peer is refused; "" if it is admitted.

        `greets` says that the peer wants to speak the protocol between nodes, `is_live` that it is
        connected already.
        """


def parse_identity(uris: Iterable[str]) -> PeerIdentity:
    """Return the holder that a certificate's URIs name, without any grants.

    URIs of other schemes are ignored; an invalid one of ours invalidates the whole certificate.

    Raises:
        Refused: No role, several roles, an unknown word, or an invalid name.

    >>> parse_identity(["rt://publisher/jfk", "rt://session/jfk-*"]).may_push("jfk-1")
    False
    """
    each = list(uris)
    holder = listed_in(each)
    clusters = [uri.removeprefix(CLUSTER_SCHEME) for uri in each if uri.startswith(CLUSTER_SCHEME)]
    return PeerIdentity(holder.name, holder.role, clusters=tuple(clusters[:CLUSTERS_MAX]))


def listed_in(uris: Iterable[str]) -> PeerIdentity:
    """Return the holder with the grants in an old certificate; errors as for `parse_identity`.

    >>> listed_in(["rt://publisher/jfk", "rt://session/jfk-*"]).sessions
    ('jfk-*',)
    """
    ours = [uri.removeprefix(SCHEME) for uri in uris if uri.startswith(SCHEME)]
    if len(ours) > GLOBS_MAX + 1:
        raise _refused(f"it has {len(ours)} rt:// entries, at most {GLOBS_MAX + 1} are read")
    words: dict[str, list[str]] = {
        noun: [] for noun in ("session", "stream", *CertificateRole)
    }  # fmt: skip
    for uri in ours:
        noun, _, text = uri.partition("/")
        if noun not in words:
            raise _refused(f"{shown(uri)} is none of {', '.join(words)}")
        words[noun].append(text)
    try:
        return _identity(words)
    except Misuse as error:
        raise _refused(str(error)) from error


def identity_of(certificate: x509.Certificate) -> PeerIdentity:
    """Return the holder that a certificate names; errors as for `parse_identity`."""
    return parse_identity(_uris(certificate))


def demand_readable(certificate: x509.Certificate) -> x509.Certificate:
    """Return the certificate after checking that every part used here can be read.

    Raises:
        The errors in `UNREADABLE`: A part cannot be read.
    """
    _ = certificate.issuer, certificate.subject, certificate.extensions, certificate.public_key()
    _ = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return certificate


def listed_by(certificate: x509.Certificate) -> PeerIdentity:
    """Return the holder with the grants in an old certificate; errors as for `listed_in`."""
    return listed_in(_uris(certificate))


def objection_to_life(certificate: x509.Certificate) -> str:
    """Return why a certificate's validity is too long; "" if it is not."""
    lifetime = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    if lifetime <= _LIFETIME_MAX:
        return ""
    return f"it is valid for {lifetime.days} days, at most {VALID_DAYS_MAX} are taken"


def read_identity(der: bytes, usage: x509.ObjectIdentifier) -> PeerIdentity:
    """Return the identity in a certificate whose signature and dates were already verified.

    The TLS library accepts a certificate without extended key usage, one valid for ten years, and
    any certificate of the authority for any purpose; this function refuses all three.

    Args:
        der: The certificate, DER encoded.
        usage: The extended key usage that the certificate must state: server or client
            authentication.

    Raises:
        Refused: The certificate does not state what it must; the message says what is missing.
    """
    try:
        certificate = x509.load_der_x509_certificate(der)
        usages = _usages(certificate)
        uris = _uris(certificate)
        why = objection_to_life(certificate)
    except UNREADABLE as error:
        raise _refused(f"it cannot be read: {error}") from error
    if why:
        raise _refused(why)
    if usage not in usages:
        raise _refused(f"its extended key usage lacks {_USAGE_WORDS[usage]} authentication")
    return parse_identity(uris)


_USAGE_WORDS: Final = {
    ExtendedKeyUsageOID.SERVER_AUTH: "server",
    ExtendedKeyUsageOID.CLIENT_AUTH: "client",
}


def _identity(words: dict[str, list[str]]) -> PeerIdentity:
    roles = [(role, text) for role in CertificateRole for text in words[role]]
    if len(roles) != 1:
        count = "no" if not roles else "more than one"
        raise _refused(f"it names {count} role, such as rt://publisher/jfk")
    [(role, name)] = roles
    return PeerIdentity(
        name=parse_peer(name),
        role=role,
        sessions=tuple(parse_glob(text) for text in words["session"]),
        streams=tuple(parse_glob(text) for text in words["stream"]),
    )


def _usages(certificate: x509.Certificate) -> Set[x509.ObjectIdentifier]:
    try:
        return set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return set()


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _any_matches(globs: Iterable[NameGlob], name: str) -> bool:
    return any(glob_matches(glob, name) for glob in globs)


def _refused(reason: str) -> Refused:
    words = f"certificate refused: {reason}; issue another with rt certs issue"
    return Refused(REFUSED_CODE, words)

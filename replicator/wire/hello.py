"""Hello: the first message of both sides, and what it permits a peer to do."""

import re
from collections.abc import Iterable
from typing import Final

from replicator.wire.codec import SUCCESSION_VERSION, VERSION, VERSION_MIN, encode
from replicator.wire.link import Link
from replicator.wire.messages import PULL, PUSH, Hello, SuccessionNotice
from rt.errors import Misuse, Refused
from rt.format.manifest import SESSION, LogIdentity
from rt.names import parse_session, shown
from rt.net.authority.grants import GRANTS_NAME
from rt.net.authority.identity import PULLING, CertificateRole, PeerIdentity
from rt.text import printable
from rt.version import SOFTWARE

_LOG_ID: Final = re.compile(r"[0-9a-f]{32}")
_PUSHING: Final = (CertificateRole.PUBLISHER, CertificateRole.NODE)  # a node relays


def send_hello(link: Link, direction: int, stream: str) -> None:
    """Greet the dialled node and check its answer.

    Raises:
        Refused: the node does not serve us, speaks another version or serves another stream.
        PeerError: the node does not speak the protocol.
    """
    link.send(encode(Hello(VERSION_MIN, VERSION, direction, stream, SOFTWARE)))
    answer = link.expect(Hello)
    link.version, link.software = check_answer(answer, stream), printable(answer.software)


def send_successions(link: Link, texts: Iterable[str]) -> None:
    """Send statements that another log continues an ended one, if the peer understands them."""
    if link.version >= SUCCESSION_VERSION:
        for text in texts:
            link.send(encode(SuccessionNotice(text)))


def check_hello(hello: Hello, peer: PeerIdentity, *, is_own: bool) -> None:
    """Raise `Refused` unless this peer may do what its Hello asks for.

    Args:
        hello: what the peer asks for.
        peer: its identity.
        is_own: whether publishers whose grants name no stream may push to this stream.
    """
    stream = hello.stream
    if hello.direction == PUSH and peer.role not in _PUSHING:
        raise Refused("role", f"{peer.name!r} is a {peer.role}; only a publisher may push")
    if hello.direction == PUSH and not peer.may_push_to(stream, is_own=is_own):
        raise Refused("role", f"{GRANTS_NAME} does not grant {peer.title} the stream {stream!r}")
    if hello.direction == PULL and not peer.may_pull(stream):
        if peer.role not in PULLING:
            raise Refused("role", f"{peer.name!r} is a {peer.role}; only a subscriber may pull")
        raise Refused("role", f"{GRANTS_NAME} does not grant {peer.title} the stream {stream!r}")


def check_log(log: LogIdentity, stream: str, peer: PeerIdentity) -> None:
    """Raise `Refused` unless the names are valid and this peer may push this log to the stream."""
    try:
        parse_session(log.name)
    except Misuse as error:
        raise Refused("name", str(error)) from error
    if log.kind != SESSION or log.stream != stream:
        kind = shown(log.kind)
        words = f"a session of {stream!r} is wanted, not a {kind} log of another"
        raise Refused("stream", words)
    if not _LOG_ID.fullmatch(log.id):
        raise Refused("name", f"the id of a log has 32 hexadecimal digits, not {shown(log.id)}")
    for kind, name in (("session", log.name), ("group", log.group)):
        if name and not peer.may_push(name):
            words = f"{GRANTS_NAME} does not grant {peer.title} the {kind} {name!r}"
            raise Refused("session", words)


def check_answer(hello: Hello, stream: str) -> int:
    """Return the version to speak; `Refused` if none is shared, or the stream differs."""
    version = common_version(hello)
    if hello.stream != stream:
        raise Refused("stream", f"the node serves another stream than {stream!r}")
    return version


def common_version(hello: Hello, oldest: int = VERSION_MIN, newest: int = VERSION) -> int:
    """Return the newest version of the protocol that both sides speak.

    Args:
        hello: the peer's greeting; the peer computes the same version from this side's greeting.
        oldest: the oldest version that this side speaks.
        newest: the newest version that this side speaks.

    Raises:
        Refused: no version is spoken by both sides.
    """
    common = min(newest, hello.version_max)
    if common >= max(oldest, hello.version_min):
        return common
    ours, theirs = _versions(oldest, newest), _versions(hello.version_min, hello.version_max)
    raise Refused(
        "version",
        f"this side speaks {ours} of the protocol and the other {theirs}; "
        "update whichever is older",
    )


def _versions(low: int, high: int) -> str:
    return f"version {low}" if low == high else f"versions {low} to {high}"

"""Greeting: the Hello of both sides, and what a peer may do after it."""

from typing import Final

from replicator.link import Link
from replicator.wire import PULL, PUSH, VERSION, Hello, encode
from rt.errors import Refused
from rt.net.identity import CertificateRole, PeerIdentity
from rt.version import __version__

_SOFTWARE: Final = f"rt {__version__}"


def greet(link: Link, direction: int, stream: str) -> None:
    """Say what we came for, as the side that dialled.

    Raises:
        Refused: the node does not serve us; or speaks no version of ours, or another stream.
        PeerError: it does not speak the protocol.
    """
    link.send(encode(Hello(VERSION, VERSION, direction, stream, _SOFTWARE)))
    check_answer(link.expect(Hello), stream)


def answer(link: Link, stream: str, peer: PeerIdentity) -> Hello:
    """Hear what a peer came for, and welcome it if it may.

    Raises:
        Refused: it may not.
        PeerError: it does not speak the protocol.
    """
    hello = link.expect(Hello)
    check_hello(hello, stream, peer)
    link.send(encode(Hello(VERSION, VERSION, hello.direction, stream, _SOFTWARE)))
    return hello


def check_hello(hello: Hello, stream: str, peer: PeerIdentity) -> None:
    """Raise `Refused` unless a peer of this identity may have what it asks for."""
    if not hello.version_min <= VERSION <= hello.version_max:
        spoken = f"{hello.version_min} to {hello.version_max}"
        raise Refused("version", f"version {VERSION} is spoken here, {spoken} there")
    if hello.stream != stream:
        raise Refused("stream", f"the stream {stream!r} is served here, not another")
    if hello.direction == PUSH and peer.role is CertificateRole.SUBSCRIBER:
        raise Refused("role", f"{peer.name!r} is a {peer.role}; only a publisher may push")
    if hello.direction == PULL and not peer.may_pull(stream):
        words = f"the certificate of {peer.name!r} does not grant pulling the stream {stream!r}"
        raise Refused("role", words)


def check_answer(hello: Hello, stream: str) -> None:
    """Raise `Refused` unless the node speaks our version, of our stream."""
    if hello.version_max != VERSION or hello.stream != stream:
        raise Refused("version", f"the node answers with version {hello.version_max}")

"""Greeting: answers the first message of a peer that dialled this node, if it may proceed."""

from replicator.serve.streams import ServedStream, Streams
from replicator.wire.codec import VERSION, VERSION_MIN, encode
from replicator.wire.hello import check_hello, common_version
from replicator.wire.link import Link
from replicator.wire.messages import Hello
from rt.errors import Refused
from rt.net.authority.identity import PeerIdentity
from rt.version import SOFTWARE


def answer_hello(link: Link, streams: Streams, peer: PeerIdentity) -> tuple[Hello, ServedStream]:
    """Receive the greeting of a peer that dialled this node, and answer it if it may proceed.

    Returns:
        Its Hello, and the stream that it names.

    Raises:
        Refused: it may not proceed.
        PeerError: it does not speak the protocol.
    """
    hello = link.expect(Hello)
    link.version = common_version(hello)
    served = streams.named(hello.stream, peer)
    check_hello(hello, peer, is_own=served.is_own)
    if peer.is_node and (why := served.objection(peer)):
        raise Refused("not-a-member", why)
    link.send(encode(Hello(VERSION_MIN, VERSION, hello.direction, hello.stream, SOFTWARE)))
    return hello, served

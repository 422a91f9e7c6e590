"""NodeRelay: pushes this node's copies of sessions to nodes that lack them."""

from replicator.push.relay import HeldCopy, Relay
from rt.errors import Refused
from rt.net.addresses import Address
from rt.net.tls import Contexts
from rt.node.ingest.inbox import NodeInbox
from rt.node.ingest.inboxes import Inboxes
from rt.node.resources.peer_addresses import PeerAddresses
from rt.position import Position


class NodeRelay:
    """NodeRelay: pushes this node's copies of sessions to nodes that have asked for them.

    A `Relay` pushes as the session's publisher would, and gives way when the publisher connects.

    Threads: a step of the duties calls `pass_on`; the thread that ends the node calls `stop`.
        `_is_stopped` is set once; a relay made at that moment ends with the process.
    """

    def __init__(
        self, stream: str, places: PeerAddresses, inboxes: Inboxes, contexts: Contexts
    ) -> None:
        """Prepare; nothing is dialled before `pass_on`.

        Args:
            stream: the stream.
            places: addresses of the other nodes.
            inboxes: the copies it may push.
            contexts: TLS contexts for dialling other nodes.
        """
        self._stream, self._places = stream, places
        self._inboxes, self._contexts = inboxes, contexts
        self._relays: dict[tuple[str, Address], Relay] = {}
        self._is_stopped = False

    def pass_on(self, node: str, session: str) -> None:
        """Push a session to a node for a while; the node asks again as long as it needs more."""
        places = self._places.now.get(node)
        if places and not self._is_stopped:
            self._relay(node, places[0]).want(session)

    def _relay(self, node: str, address: Address) -> Relay:
        """Return the relay to a node's present address; one to a former address ends by itself."""
        relay = self._relays.get((node, address))
        if relay is None:
            relay = self._relays[node, address] = Relay(
                node, address, self._contexts, self._stream,
                lambda each: held_copy(self._inboxes, each),
            )  # fmt: skip
        return relay

    def stop(self) -> None:
        """Stop all relays, and start no more."""
        self._is_stopped = True
        for relay in list(self._relays.values()):
            relay.stop()


def held_copy(inboxes: Inboxes, session: str) -> HeldCopy | None:
    """Return the copy of a session for a pusher to read; None if there is no copy."""
    inbox = inboxes.get(session)
    if inbox is None:
        return None
    return HeldCopy(inbox.appender.directory, lambda: relayed_end(inboxes, inbox), inbox.doubted)


def relayed_end(inboxes: Inboxes, inbox: NodeInbox) -> Position:
    """Return the position up to which a copy may be relayed: its durable end here.

    Raises:
        Refused: the copy was set aside.
    """
    if inboxes.get(inbox.session) is not inbox:
        raise Refused("busy", f"the copy of session {inbox.session!r} was set aside")
    return inbox.durable

"""A stream's node in a process that serves another stream too."""

from random import Random
from typing import TYPE_CHECKING, Any

from rt.errors import Refused
from rt.net.exchange import Fields
from rt.node.admin.asked_stream import demand_stream
from rt.node.retain.retention import POLICY_NOTE
from sequencer.ledger.instruction import Note

from .archiving import paced_ns
from .disk import SimDisk
from .merge_node import MergeNode
from .publisher import Pipe
from .shared_machine import SharedMachine

if TYPE_CHECKING:
    from replicator.host import Inbox

    from .shared import Side

ALONE = ("at a failed sync", "told to stop")  # ends of a stream that the process survives


def _of_the_machine(name: str) -> Any:
    """Return a property that all nodes of a machine share."""
    return property(
        lambda self: getattr(self.site, name),
        lambda self, value: setattr(self.site, name, value),
    )


class SharedNode(MergeNode):
    """A node of one of several streams; it is paused, slowed and killed with its machine."""

    world: "Side"
    paused_until_us = _of_the_machine("paused_until_us")
    rate = _of_the_machine("rate")
    disk_delay_us = _of_the_machine("disk_delay_us")

    def __init__(self, name: str, world: "Side", chance: Random) -> None:
        self.site: SharedMachine = world.machines[name]
        self._stream = world.stream_name
        super().__init__(name, world, chance)

    def _make_disk(self, chance: Random) -> SimDisk:
        return self.site.directory_of(self._stream, chance)

    @property
    def is_full(self) -> bool:
        """Whether the disk of its directory is full."""
        return self.site.is_full(self._stream)

    @is_full.setter
    def is_full(self, full: bool) -> None:
        self.site.fill(self._stream, full)

    def started(self) -> None:
        """Serve the stream."""
        self.site.serve(self)

    def die(self, point: str, *, power: bool) -> None:
        """End the stream, and the whole process unless only the stream has failed."""
        super().die(point, power=power)
        self.site.drop(self._stream, point)
        if point in ALONE and not power:
            return
        self.site.end()
        for twin in self.site.nodes.values():
            if twin.alive:
                twin.die(point, power=power)
                twin.world.nemesis.restart_later(twin)

    # Connections

    def hear_from(self, world: "Side", source: str, data: bytes) -> None:
        """Take a message that came on a connection for this stream."""
        world.deliver(source, self.name, data)

    def _connect(self, session: str) -> None:
        publisher = self.world.publishers[session]
        host = self.site.named(publisher.identity.stream)
        inbox = host.inboxes.claim(
            publisher.identity, publisher.peer, _NoBell(), host.proven(session)
        )
        try:
            host.pipes[session] = Pipe(publisher.disk, session, inbox)
        except Refused:
            inbox.release()
            raise

    def feed_pipe(self, copy: "Inbox", *, relays: bool) -> Pipe:
        """Connect a copy to the stream that it names."""
        host = self.site.named(self.world.stream_name)
        return super(SharedNode, host).feed_pipe(copy, relays=relays)

    def administer(self, request: Fields) -> None:
        """Carry out a change of the policy, as `rt.node.admin.node_admin.NodeAdmin` does."""
        demand_stream(self._stream, request, is_change=True)
        if not self.view.leads:
            raise Refused("not-leader", "another node leads")
        self.order(Note(paced_ns(self), POLICY_NOTE, str(request["policy"])))


class _NoBell:
    def set(self) -> None:
        """Do nothing: no thread waits."""

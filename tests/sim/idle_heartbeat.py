"""The idle heartbeats of a simulated process, delivered in the order in which they were sent."""

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rt.node.agree.heartbeat_codec import decode_heartbeat, encode_heartbeat, group_of
from sequencer.raft.consensus import Quiescence

if TYPE_CHECKING:
    from .merge_node import MergeNode

BEAT = b"\xfe"  # prefix of a heartbeat; no message of a member begins with it
_ORDER = struct.Struct("<II")  # the life of the process, and the heartbeat's number
_GROUP = group_of("sim")


class NoIdleHeartbeat:
    """The heartbeat of a process that sends and hears nothing."""

    def show(self, quiescence: Quiescence | None) -> None:
        """Say nothing."""

    def heard(self) -> Mapping[str, Quiescence]:
        """Return nothing."""
        return {}


class SimIdleHeartbeat:
    """Sends heartbeats as `ProcessHeartbeat` does; a connection keeps them in order."""

    def __init__(self, node: "MergeNode", beat_us: int, lost_us: int) -> None:
        self._node, self._beat_us, self._lost_us = node, beat_us, lost_us
        self._life, self._number = node.life, 0
        self._shown: Quiescence | None = None
        self._was_telling = False
        # by node: the order of the last heartbeat, and its content
        self._heard: dict[str, tuple[int, Quiescence]] = {}
        self._last: dict[str, tuple[int, int]] = {}
        node.world.clock.after(beat_us, self._beat)

    def show(self, quiescence: Quiescence | None) -> None:
        """Tell the others from the next heartbeat on."""
        self._shown = quiescence

    def heard(self) -> Mapping[str, Quiescence]:
        """Return where other nodes are idle."""
        since_us = self._node.world.clock.now_us - self._lost_us
        return {name: place for name, (at_us, place) in self._heard.items() if at_us > since_us}

    def receive(self, sender: str, data: bytes) -> None:
        """Receive another process's heartbeat."""
        life, number = _ORDER.unpack_from(data, len(BEAT))
        if (life, number) <= self._last.get(sender, (0, 0)):
            return
        self._last[sender] = life, number
        place = decode_heartbeat(data[len(BEAT) + _ORDER.size :]).get(_GROUP)
        before = self._heard.pop(sender, None)
        if place is not None:
            self._heard[sender] = self._node.world.clock.now_us, place
        if before is not None and before[1] != place:
            self._node.wake()

    def _beat(self) -> None:
        node, now_us = self._node, self._node.world.clock.now_us
        if self._life != node.life:
            return
        node.world.clock.after(self._beat_us, self._beat)
        if now_us < node.paused_until_us:
            return
        if self._shown is not None or self._was_telling:
            self._number += 1
            shown = {} if self._shown is None else {_GROUP: self._shown}
            beat = BEAT + _ORDER.pack(self._life, self._number) + encode_heartbeat(shown)
            for name in node.world.names:
                if name != node.name:
                    node.world.wire.send(node.name, name, beat)
        self._was_telling = self._shown is not None
        if any(now_us - at_us > self._lost_us for at_us, _ in self._heard.values()):
            self._heard = {name: each for name, each in self._heard.items()
                           if now_us - each[0] <= self._lost_us}  # fmt: skip
            node.wake()

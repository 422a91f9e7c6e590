"""AgreementSettings: a node's settings for the consensus of its cluster."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from rt.config.kinds import Seconds
from rt.errors import Misuse
from rt.names import shown
from sequencer.raft.core import Settings
from sequencer.raft.engine import Raft

_HEARTBEAT_TICKS: Final = 5


class Engine(StrEnum):
    """Engine: the consensus engines; they send the same messages, so one cluster may mix them."""

    RAFT = "raft"
    RAFTOS = "raftos"


def engine_of(name: str) -> type[Raft]:
    """Return the class of an engine; raftos is imported only if it is selected.

    Raises:
        Misuse: raftos is not installed; the message says how to install it.
        Refused: the installed raftos is not the one that was audited.
    """
    if name != Engine.RAFTOS:
        return Raft
    from sequencer.raftos_engine import RaftosRaft  # noqa: PLC0415 - optional, and audited first

    return RaftosRaft


@dataclass(frozen=True, slots=True)
class AgreementSettings:
    """AgreementSettings: a node's consensus engine and its timers."""

    consensus: Engine = field(
        default=Engine.RAFT,
        metadata={"help": "Consensus engine: raft, or raftos, which is installed separately."},
    )
    heartbeat_s: Seconds = field(
        default=0.1,
        metadata={
            "help": "Time between a leader's heartbeats. A node alone sends none, but its timers "
            "run as with at most 100ms."
        },
    )
    election_s: Seconds = field(
        default=0.5,
        metadata={
            "help": "Silence after which a node calls an election; random, up to twice this."
        },
    )
    missing_s: Seconds = field(
        default=2.0,
        metadata={
            "help": "Wait this long for a publisher's bytes, 4 times as long while it is "
            "connected; ask another node after half the time."
        },
    )
    carry: bool = field(
        default=True,
        metadata={"help": "Send small updates along with the decision to merge, unsynced."},
    )
    standby: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "Address of a mirror at the standby site (rt pull --standby --serve); repeat "
            "for each. While no node leads, this one starts only after one of them has said that "
            "it still has this log; rt node --without-standby starts it all the same."
        },
    )
    on_role: str = field(
        default="",
        metadata={
            "help": "Command to run when this node becomes leader or follower; RT_ROLE, RT_TERM, "
            "RT_LEADER, RT_NODE and RT_STREAM describe the change."
        },
    )

    def __post_init__(self) -> None:
        if self.consensus not in list(Engine):
            raise Misuse(f"consensus is {shown(self.consensus)}; use {' or '.join(Engine)}")
        if (
            not 0.005 <= self.heartbeat_s <= 60
            or not 2 * self.heartbeat_s <= self.election_s <= 600
        ):
            raise Misuse(
                f"heartbeat_s is {self.heartbeat_s:g} and election_s {self.election_s:g}; use at "
                "least 5ms, and at least twice the heartbeat for the election"
            )

    @property
    def tick_s(self) -> float:
        """The unit of the consensus timers."""
        return self.heartbeat_s / _HEARTBEAT_TICKS

    @property
    def timers(self) -> Settings:
        """The consensus timers in ticks."""
        election = round(self.election_s / self.tick_s)
        return Settings(heartbeat_ticks=_HEARTBEAT_TICKS, election_ticks=election)

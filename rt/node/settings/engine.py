"""Engine: which consensus engine a node runs, by the name in its settings."""

from enum import StrEnum

from sequencer.raft.engine import Raft


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

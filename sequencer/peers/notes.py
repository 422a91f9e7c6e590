"""Recognizes messages between members whose handling may wait for the next message."""

from typing import Final

from sequencer.raft import codec

CONSENSUS: Final = b"\x01"  # first byte of a consensus message


def is_commit_note(data: bytes) -> bool:
    """Whether another member's message only carries the leader's commit index."""
    return data.startswith(CONSENSUS) and codec.is_commit_note(data, 1)


def is_plain_success(data: bytes) -> bool:
    """Whether another member's message only acknowledges entries, or confirms a read."""
    return data.startswith(CONSENSUS) and codec.is_plain_success(data, 1)

"""Messages between members that may wait for the next one before anything follows from them."""

from typing import Final

from sequencer.raft import codec

CONSENSUS: Final = b"\x01"  # the first byte of a message of the consensus


def is_commit_note(data: bytes) -> bool:
    """Whether a message of another member only says how far the leader has committed."""
    return data[:1] == CONSENSUS and codec.is_commit_note(data, 1)


def is_plain_success(data: bytes) -> bool:
    """Whether a message of another member only says that it has entries, or confirms a read."""
    return data[:1] == CONSENSUS and codec.is_plain_success(data, 1)

"""Recognizes messages between members that may be handled later, with the sender's next ones."""

from typing import Final

from sequencer.raft import codec

CONSENSUS: Final = b"\x01"  # first byte of a consensus message
_COMMIT_NOTE: Final = CONSENSUS + codec.COMMIT_NOTE
_COMMIT_NOTE_BYTES: Final = len(CONSENSUS) + codec.COMMIT_NOTE_BYTES
_PLAIN_SUCCESS: Final = CONSENSUS + codec.PLAIN_SUCCESS
_PLAIN_SUCCESS_BYTES: Final = len(CONSENSUS) + codec.PLAIN_SUCCESS_BYTES


def is_commit_note(data: bytes) -> bool:
    """Whether another member's message only carries the leader's commit index."""
    return len(data) == _COMMIT_NOTE_BYTES and data.startswith(_COMMIT_NOTE)


def is_plain_success(data: bytes) -> bool:
    """Whether another member's message only acknowledges entries, or confirms a read."""
    return len(data) == _PLAIN_SUCCESS_BYTES and data.startswith(_PLAIN_SUCCESS)

"""Nodes exchange exactly the messages that the transcripts show."""

from pathlib import Path

import pytest

from .__main__ import play, transcripts

REWRITE = "python -m tests.transcripts --rewrite"


@pytest.mark.parametrize("path", transcripts(), ids=lambda path: path.stem)
def test_the_messages_are_those_of_the_transcript(path: Path) -> None:
    """A changed rule shows up as a changed transcript, for a person to review."""
    assert play(path.read_text()) == path.read_text(), f"if this is intended: {REWRITE}"


def test_there_are_at_least_twenty() -> None:
    """Transcripts do not silently go missing."""
    assert len(transcripts()) >= 20

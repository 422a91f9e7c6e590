"""What nodes say to each other is what the transcripts say."""

from pathlib import Path

import pytest

from .__main__ import play, transcripts

REWRITE = "python -m tests.transcripts --rewrite"


@pytest.mark.parametrize("path", transcripts(), ids=lambda path: path.stem)
def test_the_dialogue_is_what_we_think(path: Path) -> None:
    """A rule that changes shows as words that change, to be read by a person."""
    assert play(path.read_text()) == path.read_text(), f"if it is meant: {REWRITE}"


def test_there_are_at_least_twenty() -> None:
    """Dialogues do not quietly go missing."""
    assert len(transcripts()) >= 20

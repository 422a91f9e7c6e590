"""Nodes exchange exactly the messages that the transcripts show."""

from pathlib import Path

import pytest

from sequencer.raft.engine import Raft
from sequencer.raft.entries import Log
from tests.sim.mutation import patched, rewritten

from .__main__ import play, transcripts

REWRITE = "python -m tests.transcripts --rewrite"


@pytest.mark.parametrize("path", transcripts(), ids=lambda path: path.stem)
def test_the_messages_are_those_of_the_transcript(path: Path) -> None:
    """A changed rule shows up as a changed transcript, for a person to review."""
    assert play(path.read_text()) == path.read_text(), f"if this is intended: {REWRITE}"


def test_there_are_at_least_twenty() -> None:
    """Transcripts do not silently go missing."""
    assert len(transcripts()) >= 20


@pytest.mark.parametrize(
    ("owner", "rule", "right", "wrong", "number"),
    [
        (Raft, "may_campaign", "return not self._is_reluctant or", "return True or", "37"),
        (Raft, "may_campaign", " or self._timeouts > RELUCTANCE_TIMEOUTS", "", "37"),
        (Log, "contradicts", "not in {None, term}", "is ...", "38"),
    ],
)
def test_a_transcript_shows_the_mistake_it_is_about(
    owner: type, rule: str, right: str, wrong: str, number: str
) -> None:
    """These mistakes break no promise of the engine's own, so no simulated world notices them."""
    [path] = [path for path in transcripts() if path.stem.startswith(number)]
    with patched([rewritten(owner, rule, right, wrong)]):
        assert play(path.read_text()) != path.read_text()

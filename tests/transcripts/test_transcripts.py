"""Nodes exchange exactly the messages that the transcripts show."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sequencer.raft.candidacy import Candidacy
from sequencer.raft.log import Log

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
    ("owner", "rule", "mistake", "number"),
    [
        (Candidacy, "may_campaign", lambda _self: True, "37"),
        (Candidacy, "may_campaign", lambda self: not self.is_reluctant, "37"),
        (Log, "contradicts", lambda _self, _index, _term: False, "38"),
    ],
)
def test_a_transcript_shows_the_mistake_it_is_about(
    owner: type,
    rule: str,
    mistake: Callable[..., bool],
    number: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """These mistakes break no promise of the engine's own, so no simulated world notices them."""
    monkeypatch.setattr(owner, rule, mistake)
    [path] = [path for path in transcripts() if path.stem.startswith(number)]
    assert play(path.read_text()) != path.read_text()

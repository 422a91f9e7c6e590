"""When a source tells a sink that its copy is complete."""

import pytest
from dialogue import Dialogue, Log, copy_all

from rt.position import START


@pytest.mark.parametrize("looks", range(6))
def test_a_copy_is_not_complete_without_what_came_while_it_was_looked_at(tmp_path, looks):
    """A node that was behind had all of it a moment later, and its puller ended with a part."""
    source = Log(tmp_path / "source").write(600, 1, 300).roll().write(700).directory
    end = copy_all(source, tmp_path / "all").outlet.position
    left = looks

    def served():
        nonlocal left
        left -= 1
        return START if left >= -1 else end

    dialogue = Dialogue(source, tmp_path / "sink")
    dialogue.outlet = dialogue.source.open(dialogue.log, served, is_whole=lambda: left < 0)
    for _ in range(looks + 2):
        dialogue.talk()
    dialogue.close()
    assert [each.position for each in dialogue.caught_up] == [end]

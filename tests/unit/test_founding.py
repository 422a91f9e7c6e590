"""The settings fixed when a cluster is founded: here the size of merged files."""

from dataclasses import replace

import pytest

from rt.errors import PeerError, Refused
from rt.log.files.disk import OsDisk
from rt.node.host.state import open_state
from rt.node.settings.node import NodeSettings
from rt.node.settings.storage import StorageSettings
from sequencer.raft.codec import MessageCodec
from sequencer.raft.messages import RequestVote

ALONE = NodeSettings(root="unused", stream="flights", name="n1")
SMALL = replace(ALONE, storage=StorageSettings(file_bytes=1 << 20))


@pytest.mark.parametrize(("founded", "later"), [(ALONE, SMALL), (SMALL, ALONE)])
def test_a_node_refuses_another_file_size_than_it_was_founded_with(tmp_path, founded, later):
    """It would roll its merged log elsewhere than it did, or than the others do."""
    open_state(OsDisk(), founded, str(tmp_path), founding=False).journal.close()
    with pytest.raises(Refused, match="file_bytes 1048576") as refused:
        open_state(OsDisk(), later, str(tmp_path), founding=False)
    assert refused.value.code == "foreign"
    open_state(OsDisk(), founded, str(tmp_path), founding=False).journal.close()


def test_nodes_that_would_roll_at_other_sizes_do_not_take_each_other_for_members():
    """They would write different logs from the first roll on, and the refusal says the sizes."""
    ours, theirs = (
        MessageCodec(each.founding_name, ["n1", "n2", "n3"], 1) for each in (ALONE, SMALL)
    )
    vote = RequestVote(term=1, last_index=0, last_term=0, pre_vote=False, transfer=False)
    with pytest.raises(PeerError, match="flights \\(file_bytes 1048576\\)' of n1, n2, n3, ours is"):
        ours.decode(theirs.encode(vote))


def test_a_node_that_is_added_does_not_say_that_it_lost_something(tmp_path, caplog):
    """The first start of every added node logged an error."""
    members = tuple(f"n{each}=localhost:{each}" for each in (1, 2, 3))
    added = replace(ALONE, name="n3", members=members, cluster_id="c" * 32)
    open_state(OsDisk(), added, str(tmp_path), founding=False).journal.close()
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert "nothing is here yet" in caplog.text
    caplog.clear()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "log.0.0").write_bytes(b"x")
    for path in (tmp_path / "state").iterdir():
        path.unlink()
    open_state(OsDisk(), added, str(tmp_path), founding=False).journal.close()
    assert [each.levelname for each in caplog.records] == ["ERROR"]

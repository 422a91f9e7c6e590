"""The file that says after which instructions a node's copies of sessions were begun."""

import errno
import json
import os

import pytest
from faulty import FaultyDisk

from rt.errors import Misuse, Refused
from rt.log.files.disk import OsDisk
from rt.node.ingest.inboxes import Inboxes
from rt.node.ingest.session_epochs import SessionEpoch, read_epochs
from rt.node.ingest.session_state import SessionState
from rt.position import START
from tests.unit.test_node_inbox import NoBell, NoGuard, identity


def copies(root, disk=None):
    """Return the copies of sessions in a directory, none of which is opened."""
    return Inboxes(
        disk or OsDisk(), str(root), "flights", lambda _end, _name: None, NoGuard(),
        alone=lambda: False,
    )  # fmt: skip


def noted(root, **ended):
    """Record that the copies of these sessions are gone."""
    copies(root).drop_all(ended, lambda _session, _begun: True)


def remembered(root, session):
    """Return what a node that starts again knows of a session."""
    state = SessionState(session)
    state.begun = read_epochs(OsDisk(), str(root)).get(session, SessionEpoch())
    return state


def test_what_was_noted_is_known_after_a_restart(tmp_path):
    """A log that was retired is refused for good."""
    noted(tmp_path, jfk=SessionEpoch(7, "a" * 32))
    assert copies(tmp_path).begun_after("jfk") == 7
    assert remembered(tmp_path, "lga").is_blank
    with pytest.raises(Refused, match="was retired"):
        remembered(tmp_path, "jfk").demand_log("a" * 32)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"jfk": 7}', b'{"jfk": ["x", ""]}', b"\xff"])
def test_a_damaged_file_is_refused_and_not_taken_for_none(tmp_path, data):
    """Taken for none, it would let a retired log be merged again, and remove newer copies."""
    (tmp_path / ".begun").write_bytes(data)
    with pytest.raises(Misuse, match=r"is damaged.*empty this node's directory"):
        copies(tmp_path)


def test_ten_thousand_sessions_that_end_in_one_step_are_one_write(tmp_path):
    """The file was written and synced again for each, which took a minute in one step."""
    disk, calls = FaultyDisk(), []
    inboxes = copies(tmp_path, disk)
    disk.step = calls.append
    ended = {f"s{number}": SessionEpoch(7) for number in range(10_000)}
    inboxes.drop_all(ended, lambda _session, _begun: True)
    assert [calls.count(each) for each in ("names", "append", "sync")] == [1, 1, 1]
    assert len(json.loads((tmp_path / ".begun").read_bytes())) == 10_000


def test_what_is_no_longer_needed_is_forgotten_with_the_next_write(tmp_path):
    """The file grew with every session there ever was."""
    inboxes = copies(tmp_path)
    inboxes.drop_all(
        {"jfk": SessionEpoch(7, "a" * 32), "lga": SessionEpoch(8)}, lambda _session, _begun: True
    )
    inboxes.drop_all({"ewr": SessionEpoch(9)}, lambda session, _begun: session == "lga")
    for each in (inboxes, copies(tmp_path)):
        assert [each.begun_after(name) for name in ("jfk", "lga", "ewr")] == [0, 8, 9]
    remembered(tmp_path, "jfk").demand_log("a" * 32)


def test_a_full_disk_delays_the_record_and_refuses_the_session_meanwhile(tmp_path):
    """It ended the node, on every start."""
    disk = FaultyDisk()
    inboxes = copies(tmp_path, disk)

    def full(call):
        if call == "append":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk.step = full
    inboxes.drop_all({"jfk": SessionEpoch(7)}, lambda _session, _begun: True)
    assert inboxes.is_removing
    with pytest.raises(Refused, match="is being removed") as refused:
        inboxes.claim(identity(), "p", NoBell(), START)
    assert refused.value.code == "busy"
    disk.step = lambda _call: None
    inboxes.drop_all({"jfk": SessionEpoch(7)}, lambda _session, _begun: True)
    assert not inboxes.is_removing
    inboxes.claim(identity(), "p", NoBell(), START)
    assert copies(tmp_path).begun_after("jfk") == 7

"""The file that says after which instructions a node's copies of sessions were begun."""

import errno
import json
import os

import pytest
from faulty import FaultyDisk

from rt.errors import Misuse, Refused
from rt.log.files.disk import OsDisk
from rt.node.ingest.inboxes import Inboxes
from rt.node.ingest.session_epochs import Begun, BegunCopies


def noted(begun, **ended):
    """Record that the copies of these sessions are gone."""
    begun.begin(ended)
    begun.finish(lambda _sessions: None, lambda _session, _begun: True)


def test_what_was_noted_is_known_after_a_restart(tmp_path):
    """A log that was retired is refused for good."""
    noted(BegunCopies(OsDisk(), str(tmp_path)), jfk=Begun(7, "a" * 32))
    again = BegunCopies(OsDisk(), str(tmp_path))
    assert again.get("jfk") == Begun(7, "a" * 32)
    assert again.get("lga") == Begun()
    with pytest.raises(Refused, match="was retired"):
        again.demand_not_retired("jfk", "a" * 32)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"jfk": 7}', b'{"jfk": ["x", ""]}', b"\xff"])
def test_a_damaged_file_is_refused_and_not_taken_for_none(tmp_path, data):
    """Taken for none, it would let a retired log be merged again, and remove newer copies."""
    (tmp_path / ".begun").write_bytes(data)
    with pytest.raises(Misuse, match=r"is damaged.*empty this node's directory"):
        BegunCopies(OsDisk(), str(tmp_path))


def test_ten_thousand_sessions_that_end_in_one_step_are_one_write(tmp_path):
    """The file was written and synced again for each, which took a minute in one step."""
    disk, calls = FaultyDisk(), []
    inboxes = Inboxes(disk, str(tmp_path), "flights", lambda _end, _name: None, None, alone=False)
    disk.step = calls.append
    ended = {f"s{number}": Begun(7) for number in range(10_000)}
    inboxes.drop_all(ended, lambda _session, _begun: True)
    assert [calls.count(each) for each in ("names", "append", "sync")] == [1, 1, 1]
    assert len(json.loads((tmp_path / ".begun").read_bytes())) == 10_000


def test_what_is_no_longer_needed_is_forgotten_with_the_next_write(tmp_path):
    """The file grew with every session there ever was."""
    begun = BegunCopies(OsDisk(), str(tmp_path))
    noted(begun, jfk=Begun(7, "a" * 32), lga=Begun(8))
    begun.begin({"ewr": Begun(9)})
    begun.finish(lambda _sessions: None, lambda session, _begun: session == "lga")
    again = BegunCopies(OsDisk(), str(tmp_path))
    assert [again.get(each).after for each in ("jfk", "lga", "ewr")] == [0, 8, 9]
    again.demand_not_retired("jfk", "a" * 32)


def test_a_full_disk_delays_the_record_and_refuses_the_session_meanwhile(tmp_path):
    """It ended the node, on every start."""
    disk = FaultyDisk()
    begun, removed = BegunCopies(disk, str(tmp_path)), []

    def full(call):
        if call == "append":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk.step = full
    begun.begin({"jfk": Begun(7)})
    begun.finish(removed.append, lambda _session, _begun: True)
    assert begun.is_unfinished
    with pytest.raises(Refused, match="is being removed") as refused:
        begun.demand_not_retired("jfk", "b" * 32)
    assert refused.value.code == "busy"
    disk.step = lambda _call: None
    assert not begun.begin({"jfk": Begun(7)})
    begun.finish(removed.append, lambda _session, _begun: True)
    begun.demand_not_retired("jfk", "b" * 32)
    assert removed == [["jfk"], ["jfk"]]
    assert BegunCopies(OsDisk(), str(tmp_path)).get("jfk") == Begun(7)

"""A journal that is acknowledged before it is synced: what a power cut takes, it also tells."""

from random import Random

import pytest
from node_answers import answer

from rt.cli.common.asking import NodeAnswer
from rt.cli.look.doctor_cluster import cluster_findings
from rt.cli.look.status import report_of
from rt.cli.look.status_tables import status_text
from rt.client.readers.settings import ConnectionSettings
from rt.errors import Misuse
from rt.node.settings.node import NodeSettings
from rt.node.settings.storage import StorageSettings
from sequencer.journal.boot import LATE_NAME
from sequencer.journal.journal import found, open_journal
from sequencer.raft.consensus import Ballot, Entry, Ready, Snapshot
from tests.sim.disk import SimDisk

FRESH = 99
ENTRIES = tuple(Entry(index, 1, b"c%d" % index) for index in range(1, 4))


def opened(disk, boot, *, is_late=True):
    """The state of n1, in a boot of its machine."""
    return open_journal(disk, "d", cluster="c", node="n1", fresh=FRESH, boot=boot, is_late=is_late)


@pytest.fixture
def disk():
    """A disk with the state of a founding member."""
    disk = SimDisk(Random(1))
    found(disk, "d", cluster="c", node="n1", directory=5, place="7")
    return disk


def acknowledged(disk, boot="one", *, is_late=True):
    """Return a journal that has a vote and three entries, which were acknowledged."""
    journal = opened(disk, boot, is_late=is_late).journal
    journal.persist(Ready(ballot=Ballot(1, "n2"), entries=ENTRIES))
    return journal


def test_a_killed_process_loses_nothing(disk):
    """What a process has written is the kernel's; only the machine can lose it."""
    acknowledged(disk)
    again = opened(disk, "one")
    assert (again.damage, again.state.ballot) == ("", Ballot(1, "n2"))
    assert tuple(again.state.entries) == ENTRIES


@pytest.mark.parametrize("boot", ["two", ""])
@pytest.mark.parametrize("is_late", [True, False])
def test_after_a_power_cut_the_node_is_a_learner_whatever_is_left(disk, boot, is_late):
    """It cannot know what it lacks, so it neither votes nor counts before it has learned it all."""
    acknowledged(disk)
    disk.cut_power()
    again = opened(disk, boot, is_late=is_late)
    assert "before they were synced" in again.damage
    assert (again.state.incarnation, tuple(again.state.entries)) == (FRESH, ())
    assert (LATE_NAME in disk.names("d")) is is_late
    again.journal.close()
    assert not opened(disk, "three", is_late=is_late).damage


def test_a_machine_that_starts_again_without_a_power_cut_is_told_too(disk):
    """A crash of the kernel takes what it had not written, and leaves the files as they were."""
    acknowledged(disk)
    assert opened(disk, "two").damage


def test_a_node_that_was_stopped_loses_nothing_to_a_later_power_cut(disk):
    """An orderly restart of a machine must not make every node a learner."""
    acknowledged(disk).close()
    disk.cut_power()
    again = opened(disk, "two")
    assert (again.damage, tuple(again.state.entries)) == ("", ENTRIES)


def test_a_node_that_syncs_again_has_what_it_acknowledged_before(disk):
    """The setting may be taken back; nothing is owed after that start."""
    acknowledged(disk)
    opened(disk, "one", is_late=False)
    disk.cut_power()
    again = opened(disk, "two", is_late=False)
    assert (again.damage, tuple(again.state.entries)) == ("", ENTRIES)


def test_term_vote_and_snapshots_are_synced_all_the_same(disk):
    """A forgotten vote elects two leaders; that is never traded for speed."""
    journal = acknowledged(disk)
    journal.save_snapshot(Snapshot(2, 1, (), b"state"))
    disk.cut_power()
    names = set(disk.names("d"))
    assert {"ballot.0", "ballot.1", "snapshot", LATE_NAME} <= names
    assert b"n2" in bytes(disk.inode("d/ballot.0").data)


def test_a_node_alone_is_refused_the_setting():
    """It has no other node from which it could learn what it had acknowledged."""
    with pytest.raises(Misuse, match="needs other nodes"):
        NodeSettings(storage=StorageSettings(lose_confirmed_on_power_cut=True))


def test_status_and_doctor_name_the_nodes_that_acknowledge_first():
    """A setting that gives up a promise must not be forgotten."""
    asked = [NodeAnswer("a:1", answer("n1", now_ns=0, loses_confirmed_on_power_cut=True))]
    report = report_of(asked)
    assert "acknowledge before they sync (lose_confirmed_on_power_cut): n1" in status_text(
        report, None
    )
    warnings = [each for each in cluster_findings(asked, report, ConnectionSettings())
              if each.about == "durability"]  # fmt: skip
    assert [each.grade for each in warnings] == ["warning"]
    assert "messages are lost if most nodes lose power" in warnings[0].said

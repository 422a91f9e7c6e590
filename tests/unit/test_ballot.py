"""Ballots: a vote that was told of is never forgotten."""

from random import Random

from sequencer.journal.ballot import SLOT_NAMES, Ballots
from sequencer.raft.consensus import Ballot
from tests.sim.disk import SimDisk


def test_a_ballot_read_at_a_start_is_durable_before_another_is_written() -> None:
    """A life that died in a sync leaves a slot that looks whole and is not on the disk yet."""
    disk = SimDisk(Random(1))
    disk.make_directory("state")
    first = Ballots(disk, "state", 7)
    first.write(Ballot(1, "n1"))
    for slot in SLOT_NAMES:  # as after a failed sync: written, not synced
        file = disk.open(f"state/{slot}")
        data = file.pread(512, 0)
        file.truncate(0)
        file.append([data])
    again = Ballots(disk, "state", 7)
    assert again.read() == Ballot(1, "n1")
    for slot in SLOT_NAMES:
        assert disk.durable(f"state/{slot}") == disk.open(f"state/{slot}").pread(512, 0)

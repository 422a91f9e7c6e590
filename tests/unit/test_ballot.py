"""Ballots: a vote that any peer may have learned is never forgotten."""

from random import Random

import pytest

from sequencer.journal.ballot import SLOT_NAMES, Ballots, read_ballot
from sequencer.raft.consensus import Ballot
from tests.sim.disk import SimDisk


def test_a_ballot_read_at_a_start_is_durable_before_another_is_written() -> None:
    """A process that died in a sync leaves a slot that reads well and is not on the disk yet."""
    disk = SimDisk(Random(1))
    disk.make_directory("state")
    Ballots(disk, "state", 7, Ballot(1, "n1"))
    for slot in SLOT_NAMES:  # as after a failed sync: written, not synced
        file = disk.open(f"state/{slot}")
        data = file.pread(512, 0)
        file.truncate(0)
        file.append([data])
    ballot = read_ballot(disk, "state", 7)
    assert ballot == Ballot(1, "n1")
    Ballots(disk, "state", 7, ballot)
    for slot in SLOT_NAMES:
        assert disk.durable(f"state/{slot}") == disk.open(f"state/{slot}").pread(512, 0)


@pytest.mark.parametrize("seed", range(20))
def test_a_vote_whose_sync_failed_is_kept_or_was_never_there(seed: int) -> None:
    """Whichever of the two ballots a restart reads, a power cut after it changes nothing."""
    disk = SimDisk(Random(seed), cleans_failed_pages=True)
    disk.make_directory("state")
    ballots = Ballots(disk, "state", 7, Ballot(1, "n1"))

    def fault(operation: str) -> None:
        if operation == "sync":
            raise OSError(5, "Input/output error")

    disk.fault = fault
    with pytest.raises(OSError, match="Input/output"):
        ballots.write(Ballot(2, "n2"))
    disk.kill()
    read = read_ballot(disk, "state", 7)
    assert read is not None
    Ballots(disk, "state", 7, read)
    disk.cut_power()
    assert read_ballot(disk, "state", 7) == read

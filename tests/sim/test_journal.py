"""The journal on a disk that forgets, tears and rots: nothing that was promised is lost unseen."""

from collections.abc import Sequence
from random import Random

import pytest

from rt.errors import Refused, WriterFailed
from sequencer.journal.ballot import SLOT_NAMES
from sequencer.journal.journal import Opened, found, open_journal
from sequencer.raft.consensus import Ballot, Entry, Ready, Snapshot

from .disk import PowerCut, SimDisk

ROSTER = (("n1", 0), ("n2", 0), ("n3", 0))


def entries(first: int, count: int, term: int = 1) -> tuple[Entry, ...]:
    """Consecutive entries."""
    return tuple(Entry(index, term, b"c%d" % index) for index in range(first, first + count))


def a_disk() -> SimDisk:
    """A disk with the state of the founding member n1."""
    disk = SimDisk(Random(1))
    found(disk, "d", cluster="c", node="n1", directory=5, place="inode 7")
    return disk


def opened(disk: SimDisk, fresh: int = 99, cut_bytes: int = 1) -> Opened:
    """The state of n1."""
    return open_journal(disk, "d", cluster="c", node="n1", fresh=fresh, cut_bytes=cut_bytes)


def with_history(disk: SimDisk) -> None:
    """Two batches, a ballot, a snapshot behind the first, and a third batch."""
    journal = opened(disk).journal
    journal.persist(Ready(ballot=Ballot(1, "n2"), entries=entries(1, 3)))
    journal.persist(Ready(entries=entries(4, 2)))
    journal.save_snapshot(Snapshot(3, 1, ROSTER, b"state"))
    journal.persist(Ready(ballot=Ballot(2, "n1"), entries=entries(6, 2, term=2)))


def bytes_of(disk: SimDisk, name: str) -> bytearray:
    """The bytes of one of its files, to be damaged."""
    return disk.inode(f"d/{name}").data


def test_what_was_persisted_is_read_back() -> None:
    """Ballot, snapshot and the entries behind it, across a power cut."""
    disk = a_disk()
    with_history(disk)
    disk.cut_power()
    state = opened(disk).state
    assert state.ballot == Ballot(2, "n1")
    assert state.snapshot == Snapshot(3, 1, ROSTER, b"state")
    assert tuple(state.entries) == (*entries(4, 2), *entries(6, 2, term=2))


def test_entries_that_replace_others_are_read_back_in_their_place() -> None:
    """A conflict is written behind, and read as if it had been written over."""
    disk = a_disk()
    journal = opened(disk).journal
    journal.persist(Ready(ballot=Ballot(2, ""), entries=entries(1, 5)))
    journal.persist(Ready(entries=entries(3, 1, term=2)))
    assert tuple(opened(disk).state.entries) == (*entries(1, 2), *entries(3, 1, term=2))


def test_a_torn_tail_is_cut_at_the_last_whole_batch() -> None:
    """A batch that no sync has covered may end at any byte; nobody was told of it."""
    disk = a_disk()
    opened(disk).journal.persist(Ready(entries=entries(1, 3), ballot=Ballot(1, "")))
    whole = bytes(bytes_of(disk, "entries"))
    opened(disk).journal._log.append([b"".join(_batch(disk))])
    longer = bytes(bytes_of(disk, "entries"))
    for end in range(len(whole), len(longer)):
        bytes_of(disk, "entries")[:] = longer[:end]
        again = opened(disk)
        assert not again.damage
        assert tuple(again.state.entries) == entries(1, 3)


def _batch(disk: SimDisk) -> Sequence[bytes]:
    from sequencer.journal.records import encode_records

    size = len(bytes_of(disk, "entries"))
    return list(encode_records(entries(4, 1), size, size))


@pytest.mark.parametrize("name", ["entries", "snapshot", "identity"])
def test_every_flipped_bit_is_seen_and_makes_a_learner(name: str) -> None:
    """Damage is never taken for a tear, and a node that has it does not vote (NATS 7549)."""
    reference = a_disk()
    with_history(reference)
    for place in range(8 * len(bytes_of(reference, name))):
        disk = a_disk()
        with_history(disk)
        bytes_of(disk, name)[place // 8] ^= 1 << place % 8
        again = opened(disk, fresh=1234)
        assert again.damage
        assert again.state.incarnation == 1234
        assert not again.state.entries
        assert any(".bad-" in kept for kept in disk.names("d")) or name == "identity"


def test_a_log_cut_short_is_seen() -> None:
    """A log that ends at a whole record but before what was durable is damage, not a tear."""
    reference = a_disk()
    with_history(reference)
    for end in range(len(bytes_of(reference, "entries"))):
        disk = a_disk()
        with_history(disk)
        del bytes_of(disk, "entries")[end:]
        assert opened(disk).damage


def test_every_flip_in_one_slot_leaves_the_last_ballot() -> None:
    """Two alternating slots would bring back the older vote; two equal ones do not."""
    for name in SLOT_NAMES:
        for place in range(26 * 8):
            disk = a_disk()
            with_history(disk)
            bytes_of(disk, name)[place // 8] ^= 1 << place % 8
            again = opened(disk)
            assert not again.damage
            assert again.state.ballot == Ballot(2, "n1")


def test_a_start_with_a_bad_slot_never_risks_the_good_one() -> None:
    """The bad slot is mended first; a power cut inside the mending leaves one whole slot."""
    for name in SLOT_NAMES:
        for last in range(8):
            disk = a_disk()
            with_history(disk)
            disk.settle_all()
            bytes_of(disk, name)[9] ^= 1
            _start_until(disk, last)
            assert opened(disk).state.ballot == Ballot(2, "n1")


def _start_until(disk: SimDisk, last: int) -> None:
    left = [last]

    def fault(_: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise PowerCut

    disk.fault = fault
    try:
        opened(disk)
    except PowerCut:
        disk.cut_power()
    disk.fault = None


def test_half_a_mark_does_not_hide_the_marks_behind_it() -> None:
    """A power cut may leave a part of a mark; what is noted after the start must still be read."""
    disk = a_disk()
    opened(disk).journal.persist(Ready(ballot=Ballot(1, ""), entries=entries(1, 1)))
    del bytes_of(disk, "marks")[-5:]
    opened(disk).journal.persist(Ready(entries=entries(2, 1)))
    del bytes_of(disk, "entries")[-20:]
    assert opened(disk).damage


def test_both_slots_bad_make_a_learner() -> None:
    """A node that does not know whom it voted for does not vote."""
    disk = a_disk()
    with_history(disk)
    for name in SLOT_NAMES:
        bytes_of(disk, name)[9] ^= 1
    assert "ballots" in opened(disk).damage


def test_power_cut_at_every_operation_loses_nothing_that_was_promised() -> None:
    """Whatever step of a persist, a snapshot or an install is the last, a start finds its way."""
    for last in range(200):
        for seed in range(4):
            disk = SimDisk(Random(seed))
            found(disk, "d", cluster="c", node="n1", directory=5)
            disk.settle_all()
            if not _live_until(disk, last):
                return
    pytest.fail("the history never came to its end")


def _live_until(disk: SimDisk, last: int) -> bool:
    """Live with the power cut at operation `last`; False if it did not come to that."""
    promised: list[Ready] = []
    left = [last]

    def fault(_: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise PowerCut

    disk.fault = fault
    try:
        journal = opened(disk).journal
        for ready in _history():
            journal.persist(ready)
            promised.append(ready)
        journal.save_snapshot(Snapshot(22, 3, ROSTER, b"own"))
    except PowerCut:
        disk.cut_power()
        again = opened(disk)
        assert not again.damage
        for ready in promised:
            _demand_kept(again, ready)
        _demand_life(disk, again)
        return True
    return False


def _demand_life(disk: SimDisk, again: Opened) -> None:
    """What is written after a start is found at the next one, behind an install cut short too."""
    base = again.state.snapshot.index if again.state.snapshot else 0
    following = entries(base + len(again.state.entries) + 1, 1, term=9)
    again.journal.persist(Ready(ballot=Ballot(9, ""), entries=following))
    once_more = opened(disk)
    assert not once_more.damage
    assert tuple(once_more.state.entries)[-1:] == following


def _history() -> list[Ready]:
    received = Snapshot(20, 2, ROSTER, b"received")
    return [
        Ready(ballot=Ballot(1, "n2"), entries=entries(1, 3)),
        Ready(entries=entries(4, 2)),
        Ready(ballot=Ballot(2, ""), snapshot=received),
        Ready(ballot=Ballot(3, "n1"), entries=entries(21, 2, term=3)),
    ]


def _demand_kept(again: Opened, ready: Ready) -> None:
    base = again.state.snapshot.index if again.state.snapshot else 0
    if ready.ballot is not None:
        assert again.state.ballot.term >= ready.ballot.term
    if ready.snapshot is not None:
        assert base >= ready.snapshot.index
    for entry in ready.entries:
        assert entry.index <= base or entry in again.state.entries


def test_a_failed_sync_ends_the_journal() -> None:
    """After a failed sync the kernel may have dropped the bytes; a retry would lie."""
    disk = a_disk()
    journal = opened(disk).journal

    def fail(operation: str) -> None:
        if operation == "sync":
            raise OSError(5, "Input/output error")

    disk.fault = fail
    with pytest.raises(WriterFailed):
        journal.persist(Ready(entries=entries(1, 1)))
    disk.fault = None
    with pytest.raises(WriterFailed):
        journal.persist(Ready(entries=entries(1, 1)))


@pytest.mark.parametrize(
    ("code", "cluster", "node", "place"),
    [
        ("foreign", "other", "n1", ""),
        ("swapped", "c", "n2", ""),
        ("cloned", "c", "n1", "inode 8"),
    ],
)
def test_a_directory_that_is_not_ours_is_refused_untouched(
    code: str, cluster: str, node: str, place: str
) -> None:
    """Two nodes with one vote, or a node with another's, would break every promise."""
    disk = a_disk()
    before = {name: bytes(bytes_of(disk, name)) for name in disk.names("d")}
    with pytest.raises(Refused) as refused:
        open_journal(disk, "d", cluster=cluster, node=node, fresh=9, place=place)
    assert refused.value.code == code
    assert {name: bytes(bytes_of(disk, name)) for name in disk.names("d")} == before


def test_an_empty_directory_makes_a_learner() -> None:
    """An empty directory has no vote (NATS 2792)."""
    disk = SimDisk(Random(1))
    again = opened(disk, fresh=77)
    assert again.damage == "there is no state"
    assert again.state.incarnation == 77
    assert opened(disk).state.incarnation == 77


def test_a_member_is_founded_in_an_empty_directory_only() -> None:
    """Founding again would forget the vote."""
    with pytest.raises(Refused, match="not empty"):
        found(a_disk(), "d", cluster="c", node="n1", directory=6)


def test_a_long_log_is_cut_behind_a_snapshot() -> None:
    """A start reads a bounded log."""
    disk = a_disk()
    journal = opened(disk).journal
    journal.persist(Ready(ballot=Ballot(1, ""), entries=entries(1, 100)))
    long = len(bytes_of(disk, "entries"))
    journal.save_snapshot(Snapshot(99, 1, ROSTER, b"state"))
    assert len(bytes_of(disk, "entries")) < long // 10
    assert tuple(opened(disk).state.entries) == entries(100, 1)

"""The journal on a disk that forgets, tears and rots: no promise is lost unnoticed."""

import contextlib
from collections.abc import Sequence
from random import Random

import pytest

from rt.errors import Misuse, Refused, WriterFailed
from sequencer.journal.ballot import SLOT_NAMES
from sequencer.journal.identity import adopt_state
from sequencer.journal.journal import Opened, found, open_journal
from sequencer.journal.records import encode_records
from sequencer.raft.consensus import Ballot, Entry, Ready, Seat, Snapshot

from .disk import PowerCut, SimDisk

ROSTER = tuple((name, Seat(0)) for name in ("n1", "n2", "n3"))


def entries(first: int, count: int, term: int = 1) -> tuple[Entry, ...]:
    """Consecutive entries."""
    return tuple(Entry(index, term, b"c%d" % index) for index in range(first, first + count))


def a_disk() -> SimDisk:
    """A disk with the state of the founding member n1."""
    disk = SimDisk(Random(1))
    found(disk, "d", cluster="c", node="n1", directory=5, place="7")
    return disk


def opened(disk: SimDisk, fresh: int = 99, cut_bytes: int = 1, boot: str = "") -> Opened:
    """The state of n1."""
    return open_journal(
        disk, "d", cluster="c", node="n1", fresh=fresh, cut_bytes=cut_bytes, boot=boot
    )


def with_history(disk: SimDisk) -> None:
    """Two batches, a ballot, a snapshot after the first, and a third batch."""
    journal = opened(disk).journal
    journal.persist(Ready(ballot=Ballot(1, "n2"), entries=entries(1, 3)))
    journal.persist(Ready(entries=entries(4, 2)))
    journal.save_snapshot(Snapshot(3, 1, ROSTER, b"state"))
    journal.persist(Ready(ballot=Ballot(2, "n1"), entries=entries(6, 2, term=2)))


def bytes_of(disk: SimDisk, name: str) -> bytearray:
    """The bytes of one of its files, to be damaged."""
    return disk.inode(f"d/{name}").data


def test_what_was_persisted_is_read_back() -> None:
    """Ballot, snapshot and the entries after it, across a power cut."""
    disk = a_disk()
    with_history(disk)
    disk.cut_power()
    state = opened(disk).state
    assert state.ballot == Ballot(2, "n1")
    assert state.snapshot == Snapshot(3, 1, ROSTER, b"state")
    assert tuple(state.entries) == (*entries(4, 2), *entries(6, 2, term=2))


def test_entries_that_replace_others_are_read_back_instead() -> None:
    """A conflicting entry is appended to the file, and read as if it overwrote the old one."""
    disk = a_disk()
    journal = opened(disk).journal
    journal.persist(Ready(ballot=Ballot(2, ""), entries=entries(1, 5)))
    journal.persist(Ready(entries=entries(3, 1, term=2)))
    assert tuple(opened(disk).state.entries) == (*entries(1, 2), *entries(3, 1, term=2))


def test_a_torn_tail_is_cut_after_the_last_whole_batch() -> None:
    """A batch that no sync has covered may end at any byte; no peer has learned of it."""
    disk = a_disk()
    opened(disk).journal.persist(Ready(entries=entries(1, 3), ballot=Ballot(1, "")))
    whole = bytes(bytes_of(disk, "entries"))
    disk.open("d/entries").append(_batch(disk))
    longer = bytes(bytes_of(disk, "entries"))
    for end in range(len(whole), len(longer)):
        bytes_of(disk, "entries")[:] = longer[:end]
        again = opened(disk)
        assert not again.damage
        assert tuple(again.state.entries) == entries(1, 3)


def _batch(disk: SimDisk) -> Sequence[bytes]:
    size = len(bytes_of(disk, "entries"))
    return list(encode_records(entries(4, 1), size, size))


@pytest.mark.parametrize("name", ["entries", "snapshot", "identity"])
def test_every_flipped_bit_is_noticed_and_makes_a_learner(name: str) -> None:
    """Damage is never taken for a tear, and a damaged node does not vote (NATS 7549)."""
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


def test_a_log_cut_short_is_noticed() -> None:
    """A log that ends after an intact record, but before the durable end, is damage, not a tear."""
    reference = a_disk()
    with_history(reference)
    for end in range(len(bytes_of(reference, "entries"))):
        disk = a_disk()
        with_history(disk)
        del bytes_of(disk, "entries")[end:]
        assert opened(disk).damage


def test_every_flip_in_one_slot_leaves_the_last_ballot() -> None:
    """Two alternating slots would restore the older vote; two equal ones do not."""
    for name in SLOT_NAMES:
        for place in range(26 * 8):
            disk = a_disk()
            with_history(disk)
            bytes_of(disk, name)[place // 8] ^= 1 << place % 8
            again = opened(disk)
            assert not again.damage
            assert again.state.ballot == Ballot(2, "n1")


def test_a_start_with_a_bad_slot_never_risks_the_good_one() -> None:
    """Slots are replaced, one after the other; a power cut in between leaves an intact one."""
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


def test_half_a_mark_does_not_hide_the_marks_after_it() -> None:
    """A power cut may leave half a mark; marks appended after the start must still be read."""
    disk = a_disk()
    opened(disk).journal.persist(Ready(ballot=Ballot(1, ""), entries=entries(1, 1)))
    del bytes_of(disk, "marks")[-5:]
    opened(disk).journal.persist(Ready(entries=entries(2, 1)))
    del bytes_of(disk, "entries")[-20:]
    assert opened(disk).damage


def test_both_slots_bad_make_a_learner() -> None:
    """A node that does not know its vote does not vote."""
    disk = a_disk()
    with_history(disk)
    for name in SLOT_NAMES:
        bytes_of(disk, name)[9] ^= 1
    assert "ballots" in opened(disk).damage


def test_power_cut_at_every_operation_loses_nothing_that_was_promised() -> None:
    """Whichever operation is the last, the next start recovers everything that was promised."""
    for last in range(200):
        for seed in range(4):
            disk = SimDisk(Random(seed))
            found(disk, "d", cluster="c", node="n1", directory=5)
            disk.settle_all()
            if not _live_until(disk, last):
                return
    pytest.fail("the history never completed")


def _live_until(disk: SimDisk, last: int) -> bool:
    """Cut the power at operation `last`; False if the history completed first."""
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
    """What is written after a start is read at the next one, even after an interrupted install."""
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
    """After a failed sync the kernel may have dropped the bytes; a retry would succeed falsely."""
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
        ("cloned", "c", "n1", "8"),
    ],
)
def test_a_directory_that_is_not_ours_is_refused_untouched(
    code: str, cluster: str, node: str, place: str
) -> None:
    """Two nodes with the same vote, or one with another's, would break every promise."""
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


def test_a_long_log_is_cut_after_a_snapshot() -> None:
    """A start reads a bounded log."""
    disk = a_disk()
    journal = opened(disk).journal
    journal.persist(Ready(ballot=Ballot(1, ""), entries=entries(1, 100)))
    long = len(bytes_of(disk, "entries"))
    journal.save_snapshot(Snapshot(99, 1, ROSTER, b"state"))
    assert len(bytes_of(disk, "entries")) < long // 10
    assert tuple(opened(disk).state.entries) == entries(100, 1)


def fails_to_sync(operation: str) -> None:
    """Fail every sync."""
    if operation == "sync":
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("syncs", range(4))
def test_what_a_failed_sync_left_in_memory_is_written_again_before_it_counts(
    seed: int, syncs: int
) -> None:
    """The kernel considers the pages clean, so a restart reads what the next power cut loses."""
    disk = SimDisk(Random(seed), cleans_failed_pages=True)
    found(disk, "d", cluster="c", node="n1", directory=5)
    journal = opened(disk).journal
    journal.persist(Ready(ballot=Ballot(1, "n2"), entries=entries(1, 1)))
    left = [syncs]

    def fault(operation: str) -> None:
        left[0] -= operation == "sync"
        if left[0] < 0:
            fails_to_sync(operation)

    disk.fault = fault
    with contextlib.suppress(WriterFailed):
        journal.persist(Ready(ballot=Ballot(2, "n3"), entries=entries(2, 1)))
    disk.kill()  # and the service manager starts it again
    before = opened(disk)
    assert not before.damage
    disk.cut_power()
    after = opened(disk)
    assert not after.damage
    assert after.state == before.state


def with_bad_marks(disk: SimDisk) -> int:
    """Damage the marks of a log of two records; return where the second, unmarked one begins."""
    first = opened(disk, boot="monday").journal
    first.persist(Ready(ballot=Ballot(1, ""), entries=entries(1, 2)))
    start = len(bytes_of(disk, "entries"))
    first.persist(Ready(entries=entries(3, 2)))
    bytes_of(disk, "marks")[:] = bytes(len(bytes_of(disk, "marks")))
    return start


def test_within_one_boot_every_flipped_bit_without_a_mark_is_damage() -> None:
    """Only a power cut tears a write, and none happened: what cannot be read has rotted."""
    reference = a_disk()
    start = with_bad_marks(reference)
    for place in range(8 * start, 8 * len(bytes_of(reference, "entries"))):
        for boot, is_damage in (("monday", True), ("tuesday", False), ("", False)):
            disk = a_disk()
            with_bad_marks(disk)
            bytes_of(disk, "entries")[place // 8] ^= 1 << place % 8
            again = opened(disk, boot=boot)
            assert bool(again.damage) is is_damage
            assert is_damage or tuple(again.state.entries) == entries(1, 2)


def test_within_one_boot_an_interrupted_write_is_not_damage() -> None:
    """A process that is killed, or a full disk, leaves the beginning of a record."""
    reference = a_disk()
    start = with_bad_marks(reference)
    for end in range(start, len(bytes_of(reference, "entries"))):
        disk = a_disk()
        with_bad_marks(disk)
        del bytes_of(disk, "entries")[end:]
        again = opened(disk, boot="monday")
        assert not again.damage
        assert tuple(again.state.entries) == entries(1, 2)


def test_a_damaged_boot_id_does_not_turn_an_intact_node_into_a_learner() -> None:
    """The id is only a hint; without it, a bad tail counts as damage."""
    disk = a_disk()
    start = with_bad_marks(disk)
    bytes_of(disk, "boot")[0] ^= 1
    assert not opened(disk, boot="monday").damage
    start = with_bad_marks(disk)
    bytes_of(disk, "boot")[0] ^= 1
    bytes_of(disk, "entries")[start + 40] ^= 1
    assert opened(disk, boot="tuesday").damage


def test_a_volume_that_is_attached_elsewhere_keeps_its_state() -> None:
    """Its device number changes; if that happened to all nodes, the cluster would be dead."""
    for before, after in (("fd00:7", "103:7"), ("fd00:7", "7"), ("7", "103:7")):
        disk = SimDisk(Random(1))
        found(disk, "d", cluster="c", node="n1", directory=5, place=before)
        again = open_journal(disk, "d", cluster="c", node="n1", fresh=9, place=after)
        assert not again.damage
        assert again.state.incarnation == 0


def test_a_moved_directory_is_adopted_only_on_purpose() -> None:
    """The operator knows whether the original is gone; the node does not."""
    disk = a_disk()
    with pytest.raises(Refused, match="copy of another"):
        open_journal(disk, "d", cluster="c", node="n1", fresh=9, place="8")
    adopt_state(disk, "d", "8")
    again = open_journal(disk, "d", cluster="c", node="n1", fresh=9, place="8")
    assert not again.damage
    assert again.state.incarnation == 0
    with pytest.raises(Misuse, match="no node's state"):
        adopt_state(disk, "elsewhere", "8")


@pytest.mark.parametrize("finds", ["leader", "node"])
def test_a_disowned_state_is_set_aside_at_the_next_start(finds: str) -> None:
    """The others found that the node lost what it had acknowledged, so it starts over."""
    disk = a_disk()
    with_history(disk)
    journal = opened(disk).journal
    with pytest.raises(WriterFailed, match=r"never be restored.*empty it"):
        journal.persist(Ready(disowned=True)) if finds == "leader" else journal.disown("why")
    with pytest.raises(WriterFailed):
        journal.persist(Ready(entries=entries(8, 1)))
    disk.cut_power()
    again = opened(disk, fresh=77)
    assert "had acknowledged" in again.damage
    assert again.state.incarnation == 77
    assert not again.state.entries
    assert not opened(disk).damage

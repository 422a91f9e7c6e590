"""Starts: an older copy of a node is recognized by what others remember, and nothing else is."""

import errno
import itertools
from dataclasses import replace
from random import Random

import pytest

from rt.errors import PeerError
from sequencer.journal.ballot import SLOT_NAMES, Ballots, read_ballot
from sequencer.journal.boot import BOOT_NAME, read_boot, write_boot
from sequencer.journal.starts import (
    REMEMBERED_NAME,
    STARTS_NAMES,
    begin_start,
    read_memories,
    write_memories,
)
from sequencer.peers.restart_check import (
    PATIENCE_TICKS,
    SAVE_TICKS,
    RestartCheck,
    RestartMessage,
    decode_restart,
    encode_restart,
)
from sequencer.raft.consensus import Ballot, EngineState, Entry
from sequencer.raft.starts import (
    CHAIN_MAX,
    Claim,
    Memory,
    Reach,
    StartChain,
    contradiction,
    remembered,
)
from tests.sim.disk import SimDisk

LONG = StartChain(40, tuple(range(109, 141)))  # its first eight starts are not known any more

CASES = [
    # what is remembered, what the node says now, and why it is an older copy of itself
    ("the same start, further", Memory(0, 2, 22, Reach(3, 10)),
     Claim(0, StartChain(2, (11, 22)), Reach(2, 5), Reach(3, 11)), ""),
    ("the next start, with all it had", Memory(0, 2, 22, Reach(3, 10)),
     Claim(0, StartChain(3, (11, 22, 33)), Reach(3, 10), Reach(3, 10)), ""),
    ("some starts later", Memory(0, 2, 22, Reach(3, 10)),
     Claim(0, StartChain(4, (11, 22, 33, 44)), Reach(4, 12), Reach(4, 12)), ""),
    ("another incarnation", Memory(0, 9, 99, Reach(9, 90)),
     Claim(7, StartChain(1, (11,)), Reach(), Reach()), ""),
    ("remembered from before the chain begins", Memory(0, 8, 12345, Reach(3, 10)),
     Claim(0, LONG, Reach(5, 50), Reach(5, 50)), ""),
    ("restored, and not started since", Memory(0, 3, 33, Reach(3, 10)),
     Claim(0, StartChain(2, (11, 22)), Reach(3, 10), Reach(3, 10)), "started 3 times, and not 2"),
    ("restored from before a start, and started", Memory(0, 2, 22, Reach(3, 10)),
     Claim(0, StartChain(2, (11, 44)), Reach(3, 10), Reach(3, 10)), "start 2 was another one"),
    ("the same, and started more often than the newer copy", Memory(0, 2, 22, Reach(3, 10)),
     Claim(0, StartChain(5, (11, 44, 55, 66, 77)), Reach(9, 90), Reach(9, 90)), "was another one"),
    ("its file of starts is gone", Memory(0, 2, 22, Reach(3, 10)),
     Claim(0, StartChain(1, (44,)), Reach(3, 10), Reach(3, 10)), "started 2 times, and not 1"),
    ("restored from within a start: it lacks entries", Memory(0, 2, 22, Reach(3, 10)),
     Claim(0, StartChain(3, (11, 22, 33)), Reach(3, 9), Reach(3, 90)), "entry 10, and has only 9"),
    ("restored from within a start: it lacks a vote", Memory(0, 2, 22, Reach(4, 10)),
     Claim(0, StartChain(3, (11, 22, 33)), Reach(3, 10), Reach(5, 90)), "term 4, and has only"),
    ("resumed with its memory, from within this start", Memory(0, 2, 22, Reach(3, 10)),
     Claim(0, StartChain(2, (11, 22)), Reach(2, 5), Reach(3, 9)), "entry 10, and has only 9"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("memory", "claim", "why"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_an_older_copy_contradicts_what_is_remembered_of_the_newest(memory, claim, why):
    """If this is wrong one way, a vote is given twice; the other way, a healthy node gives up."""
    found = contradiction(memory, claim)
    assert (why in found) if why else not found


def a_disk():
    """Return a disk with an empty state directory."""
    disk = SimDisk(Random(1))
    disk.make_directory("d")
    return disk


class Directory:
    """A node's durable state, as far as it matters here."""

    def __init__(self):
        self.disk, self.state = a_disk(), EngineState()
        self.nonces = itertools.count(1)

    def start(self, others, prefix):
        claim = begin_start(self.disk, "d", self.state, prefix * 1000 + next(self.nonces))
        memories = read_memories(self.disk, "d")
        return RestartCheck(
            others, claim, memories, lambda every: write_memories(self.disk, "d", every)
        )

    def reach(self, term, index):
        self.state = EngineState(Ballot(term), None, (Entry(index, term, b""),))


class Town:
    """Three nodes that greet each other when they are told to."""

    def __init__(self):
        self.places = {name: Directory() for name in "abc"}
        self.up = {}
        self.prefixes = itertools.count(1)

    def start(self, *names):
        for name in names:
            others = [each for each in self.places if each != name]
            self.up[name] = self.places[name].start(others, next(self.prefixes))

    def stop(self, *names):
        for name in names:
            del self.up[name]

    def reach(self, term, index):
        """All that run have this much durably, and say so."""
        for name, greeting in self.up.items():
            self.places[name].reach(term, index)
            greeting.advance(Reach(term, index))
        self.greet()

    def greet(self):
        """Deliver greetings, and the answers to them, until there are none."""
        mail = [(one, other) for one in self.up for other in self.up if one != other]
        for count, (source, target) in enumerate(mail):
            if self.up[target].receive(source, self.up[source].hello(target)):
                mail.append((target, source))
            assert count < 1000

    def backup(self, name):
        files, place = {}, self.places[name]
        for each in place.disk.names("d"):
            file = place.disk.open_read(f"d/{each}")
            files[each] = file.pread(file.size(), 0)
        return files, place.state

    def restore(self, name, backup):
        files, state = backup
        place = self.places[name] = Directory()
        place.state = state
        for each, data in files.items():
            place.disk.open(f"d/{each}", create=True).append([data])

    @property
    def findings(self):
        return {name: greeting.finding for name, greeting in self.up.items() if greeting.finding}


def a_town():
    """Return three nodes that have confirmed each other's first start."""
    town = Town()
    town.start("a", "b", "c")
    town.reach(1, 5)
    assert all(greeting.is_over for greeting in town.up.values())
    return town


def test_a_start_is_confirmed_by_a_majority_at_once_if_all_answer():
    """A cluster that starts must not wait for a timeout."""
    town = a_town()
    town.stop("b")
    town.start("b")
    assert not town.up["b"].is_over
    town.greet()
    assert town.up["b"].is_over


def test_a_start_waits_for_nodes_beyond_a_majority_only_for_a_while():
    """The silent one may know best, but it may be down for days."""
    town = a_town()
    town.stop("b", "c")
    town.start("b")
    for _ in range(2 * PATIENCE_TICKS):
        town.up["b"].tick()
    assert not town.up["b"].is_over, "no node has confirmed it"
    assert town.up["b"].waits_for == 1
    town.stop("b")
    town.start("b")
    town.greet()
    assert not town.up["b"].is_over
    for _ in range(PATIENCE_TICKS):
        town.up["b"].tick()
    assert town.up["b"].is_over


def test_a_greeting_from_before_this_start_confirms_nothing():
    """It was sent by a node that did not know of this start, so it does not remember it."""
    town = a_town()
    late = town.up["a"].hello("b")
    town.stop("b")
    town.start("b")
    assert town.up["b"].receive("a", late)
    assert town.up["b"].waits_for == 1


def test_a_node_restored_after_a_later_start_is_recognized_by_the_third():
    """A nightly backup: the other node of the majority is down, so entries may be undone."""
    town = a_town()
    town.stop("b")
    backup = town.backup("b")
    town.start("b")
    town.greet()
    town.stop("c")
    town.reach(2, 9)  # a and b only
    town.stop("a", "b")
    town.restore("b", backup)
    town.start("b", "c")
    town.greet()
    assert "start 2 was another one" in town.findings["b"]
    assert not town.up["b"].is_over
    assert "c" not in town.findings, "it is only late"


def test_a_node_restored_from_within_its_last_start_is_recognized_by_how_far_it_was():
    """A snapshot of a running node's disk; the node that remembers was stopped in between."""
    town = a_town()
    backup = town.backup("b")
    town.reach(1, 9)
    for _ in range(SAVE_TICKS):
        town.up["c"].tick()
    town.stop("b", "c", "a")
    town.restore("b", backup)
    town.start("b", "c")
    town.greet()
    assert "had entry 9, and has only 5" in town.findings["b"]


def test_an_older_copy_is_recognized_whenever_the_node_that_knows_returns():
    """It may have caught up by then, and been started often: its history still is another one."""
    town = a_town()
    town.stop("b", "c")
    backup = town.backup("b")
    town.start("b")
    town.reach(2, 9)  # a and b only
    town.stop("a", "b")
    town.restore("b", backup)
    town.start("c")
    for term in range(3, 6):
        town.start("b")
        town.greet()
        for _ in range(PATIENCE_TICKS):
            town.up["b"].tick()
        assert town.up["b"].is_over, "the nodes that are up cannot know"
        town.reach(term, 20)
    town.start("a")
    town.greet()
    assert list(town.findings) == ["b"]


def test_no_healthy_node_is_ever_called_an_older_copy():
    """Restarts in any order, greetings lost, late and repeated: nothing is found, ever."""
    for seed in range(200):
        chance, town, late = Random(seed), Town(), []
        town.start("a", "b", "c")
        for index in range(60):
            name = chance.choice("abc")
            if name in town.up and chance.random() < 0.3:
                town.stop(name)
            elif name not in town.up:
                town.start(name)
            for one, other in itertools.permutations(town.up, 2):
                town.places[one].reach(index // 20, index)
                town.up[one].advance(Reach(index // 20, index))
                town.up[one].tick()
                late.append((one, other, town.up[one].hello(other)))
            for one, other, data in chance.sample(late, min(len(late), 6)):
                if other in town.up:
                    town.up[other].receive(one, data)
            assert not town.findings, f"seed {seed}"


def test_a_damaged_memory_is_no_memory():
    """Unknown facts must not be made up; the node's own state does not depend on them."""
    disk = a_disk()
    memories = {"b": [Memory(0, 3, 33, Reach(1, 2))], "c": []}
    write_memories(disk, "d", memories)
    assert read_memories(disk, "d") == memories
    disk.inode("d/remembered").data[3] ^= 1
    assert read_memories(disk, "d") == {}


@pytest.mark.parametrize("rotten", STARTS_NAMES)
def test_a_node_whose_file_of_starts_rots_is_no_older_copy(rotten):
    """One flipped bit in a file of 60 bytes made a healthy node forget all it had."""
    disk, state = a_disk(), EngineState()
    for nonce in (11, 22, 33):
        before = remembered(None, begin_start(disk, "d", state, nonce))
    disk.inode(f"d/{rotten}").data[3] ^= 1
    claim = begin_start(disk, "d", state, 44)
    assert not contradiction(before, claim)
    assert claim.chain.nonces == (11, 22, 33, 44)
    other = next(name for name in STARTS_NAMES if name != rotten)
    disk.inode(f"d/{other}").data[3] ^= 1  # the next start has mended the first
    assert begin_start(disk, "d", state, 55).chain.count == 5


class LostSector(SimDisk):
    """A disk that cannot read one file any more."""

    lost = ""

    def open_read(self, path):
        if path == self.lost:
            raise OSError(errno.EIO, "Input/output error", path)
        return super().open_read(path)


@pytest.mark.parametrize("name", [*STARTS_NAMES, *SLOT_NAMES])
def test_a_sector_that_is_lost_in_one_of_two_copies_stops_no_node(name):
    """The other copy is there for that; and what is written next goes into another sector."""
    disk = LostSector(Random(1))
    disk.make_directory("d")
    state = EngineState(Ballot(3, "b"))
    begin_start(disk, "d", state, 11)
    Ballots(disk, "d", 7, state.ballot).close()
    disk.lost = f"d/{name}"
    assert begin_start(disk, "d", state, 22).chain.nonces == (11, 22)
    assert read_ballot(disk, "d", 7) == state.ballot


@pytest.mark.parametrize("name", [REMEMBERED_NAME, BOOT_NAME])
def test_a_sector_that_is_lost_is_like_rot(name):
    """The node would not start until someone removed the file."""
    disk = LostSector(Random(1))
    disk.make_directory("d")
    write_memories(disk, "d", {"b": []})
    write_boot(disk, "d", "1")
    disk.lost = f"d/{name}"
    if name == BOOT_NAME:
        assert read_boot(disk, "d") is None
    else:
        assert read_memories(disk, "d") == {}


def test_a_start_that_was_written_once_only_counts():
    """A power cut between the two writes: nothing was said of that start, so it counts."""
    disk, state = a_disk(), EngineState()
    begin_start(disk, "d", state, 11)
    older = bytes(disk.inode("d/starts.copy").data)
    begin_start(disk, "d", state, 22)
    disk.inode("d/starts.copy").data[:] = older
    assert begin_start(disk, "d", state, 33).chain.nonces == (11, 22, 33)


def test_damaged_files_of_starts_are_a_start_that_others_do_not_know():
    """The node cannot say that it is the newest copy, so it does not."""
    disk, state = a_disk(), EngineState()
    before = remembered(None, begin_start(disk, "d", state, 11))
    assert not contradiction(before, begin_start(disk, "d", state, 22))
    for name in STARTS_NAMES:
        disk.inode(f"d/{name}").data[3] ^= 1
    assert contradiction(before, begin_start(disk, "d", state, 33))


def holding(last):
    """Return a state of term 3 with entries up to `last`."""
    return EngineState(Ballot(3), None, (Entry(last, 3, b""),))


def test_a_node_whose_undecided_entries_were_truncated_is_no_older_copy():
    """A start does not know which of its last entries are committed; a new leader replaces them."""
    disk = a_disk()
    memory = remembered(None, begin_start(disk, "d", holding(18), 11))
    assert not contradiction(memory, begin_start(disk, "d", holding(17), 22))


def test_a_start_that_knows_of_no_commit_yet_is_no_older_copy():
    """What it had committed before is among its entries, and is remembered of this start too."""
    disk = a_disk()
    before = begin_start(disk, "d", holding(18), 11)
    known = remembered(None, replace(before, now=Reach(3, 18)))
    claim = begin_start(disk, "d", holding(18), 22)
    assert not contradiction(remembered(known, claim), claim)
    assert contradiction(known, begin_start(disk, "d", holding(17), 33))


def test_a_chain_remembers_a_bounded_number_of_starts():
    """Its file, and each greeting, stay small."""
    chain = StartChain()
    for nonce in range(100, 100 + 2 * CHAIN_MAX):
        chain = chain.extended(nonce)
    assert chain.count == 2 * CHAIN_MAX
    assert [chain.at(CHAIN_MAX), chain.at(CHAIN_MAX + 1)] == [None, 100 + CHAIN_MAX]
    assert chain.at(2 * CHAIN_MAX) == chain.nonce


def test_hostile_greetings_raise_nothing_but_a_peer_error():
    """Every cut and every flip of a greeting, and arbitrary bytes."""
    claim = Claim(7, StartChain(40, tuple(range(32))), Reach(1, 2), Reach(3, 4))
    data = encode_restart(RestartMessage(claim, 5, Memory(1, 2, 3, Reach(4, 5))))
    assert encode_restart(decode_restart(data)) == data
    for end in range(len(data)):
        with pytest.raises(PeerError):
            decode_restart(data[:end])
    chance = Random(1)
    for place in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        a_town().up["a"].receive("b", bytes(flipped)) if _is_read(bytes(flipped)) else None
    for _ in range(500):
        _is_read(chance.randbytes(chance.randrange(300)))


def _is_read(data):
    try:
        decode_restart(data)
    except PeerError:
        return False
    return True

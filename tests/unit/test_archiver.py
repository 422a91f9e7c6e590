"""Archiver: which files go, by which rule; pure, so that any fleet can be tested."""

import json
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.ages import Ages
from archiver.clock import HOLD_NS, JUMP_NS, SteadyClock, agreed_ns
from archiver.decide import DiskReport, decide, demand_disks
from archiver.lease import LEASE_S_MAX, LEASES_MAX, Lease, RolledFile, new_lease, parse_lease
from archiver.plan import active_messages, archived_to, kept_files, planned, rolled_files
from archiver.policy import MINUTE_NS, Policy, parse_limit, parse_policy, policy_of, show_limit
from rt.errors import Misuse, Refused
from rt.format.manifest import MERGED, Archived, LogIdentity, Manifest, Rolled
from rt.node.admin.node_admin import NodeAdmin
from rt.node.retain.reports import decode_retention_report
from rt.node.retain.retention import (
    LEASE_NOTE,
    Machine,
    MergedGrowth,
    Retention,
    ended_leases,
    leases_of_notes,
)
from rt.node.retain.sweeper import NodeSweeper
from rt.position import START, Position
from sequencer.ledger.instruction import Note, decode_instruction, encode_instruction
from sequencer.ledger.ledger import Ledger
from sequencer.member import Member
from sequencer.raft.starts import Claim, Reach, StartChain
from tests.control_fuzz import Confirmed
from tests.replicator_host import eventually

NOW = 10**18
MINUTE = MINUTE_NS


def files_of(sizes, ages):
    """Return files of these sizes, rolled so many minutes ago, oldest first."""
    pairs = zip(sizes, sorted(ages, reverse=True), strict=True)
    return [
        RolledFile(Position.of(0, place, 0), size, NOW - age * MINUTE, size // 3)
        for place, (size, age) in enumerate(pairs)
    ]


def up_to(most, least=0):
    """Draw a number, mostly evenly; `integers` takes three times as long."""
    return st.sampled_from(range(least, most + 1))


DISKS = st.builds(DiskReport, st.sampled_from("abc"), st.just(1000), up_to(1000), up_to(100))
POLICIES = st.builds(
    Policy, up_to(60), st.none() | up_to(1500, 1), up_to(100, 1), st.none() | up_to(500, 1)
)
STARTS = up_to(13).map(lambda roll: Position.of(0, roll, 0))
LEASES = st.builds(
    Lease, st.sampled_from(["spark", "nas"]), STARTS, st.sampled_from([NOW - 1, NOW + 1]),
    up_to(1500, 1),
)  # fmt: skip
# Files, the active file's bytes, the disks of some nodes, a policy and leases.
FLEETS = st.tuples(
    st.lists(st.tuples(up_to(100), up_to(50)), max_size=12).map(
        lambda drawn: files_of([each[0] for each in drawn], [each[1] for each in drawn])
    ),
    up_to(200), st.lists(DISKS, max_size=3), POLICIES, st.lists(LEASES, max_size=2),
)  # fmt: skip


def decided(fleet, **changes):
    """Decide about a fleet, some of it changed."""
    files, active, disks, policy, leases = fleet
    facts = {"policy": policy, "files": files, "active_bytes": active, "disks": disks,
             "now_ns": NOW, "leases": leases, "nodes": max(1, len(disks)),
             "active_messages": active // 3, **changes}  # fmt: skip
    return decide(**facts)


def counted(files, active):
    """Return how many messages some files and the active one have."""
    return sum(file.messages for file in files) + active // 3


@given(FLEETS)
def test_the_oldest_go_first_and_never_another(fleet):
    """Readers follow from the old to the new; a hole in the middle would stop each of them."""
    gone = [each.start for each in decided(fleet)]
    assert gone == [file.start for file in fleet[0][: len(gone)]]


@given(FLEETS)
def test_no_rule_takes_more_than_it_asks_for(fleet):
    """What is archived too early cannot be had again."""
    files, active, disks, policy, _ = fleet
    decisions = decided(fleet)
    if not decisions:
        return
    place, last = len(decisions) - 1, decisions[-1]
    kept = sum(file.bytes for file in files[place:])
    freed = sum(file.bytes for file in files[:place])
    asks = {
        "time": policy.time and NOW - files[place].rolled_ns >= policy.time * MINUTE,
        "limit": policy.limit is not None and kept + active > policy.limit,
        "disk": 2 * sum(disk.excess(policy.disk) > freed for disk in disks) > len(disks),
        "messages": policy.messages is not None
        and counted(files[place:], active) > policy.messages,
    }
    assert asks[last.reason.partition(",")[0]]


@given(FLEETS)
def test_every_rule_is_met_as_far_as_rolled_files_can_meet_it(fleet):
    """A rule that is not carried out fills the disk."""
    files, active, disks, policy, _ = fleet
    left = files[len(decided(fleet, leases=[])) :]
    assert not any(
        policy.time and NOW - file.rolled_ns >= policy.time * MINUTE and file.bytes for file in left
    )
    if left and sum(file.bytes for file in left):
        total = sum(file.bytes for file in left) + active
        freed = sum(file.bytes for file in files) - sum(file.bytes for file in left)
        assert policy.limit is None or total <= policy.limit
        if policy.messages is not None and any(file.messages for file in left):
            assert counted(left, active) <= policy.messages
        assert 2 * sum(disk.excess(policy.disk) > freed for disk in disks) <= len(disks)


@given(FLEETS)
def test_deciding_again_after_it_was_done_decides_nothing(fleet):
    """The leader decides every second, and the next leader after it."""
    files, _, disks, _, _ = fleet
    count = len(decided(fleet))
    freed = sum(file.bytes for file in files[:count])
    done = [disk._replace(pending=disk.pending + freed) for disk in disks]
    assert decided(fleet, files=files[count:], disks=done) == []
    emptied = [disk._replace(used=disk.used - freed) for disk in disks]
    assert decided(fleet, files=files[count:], disks=emptied) == []


@given(FLEETS, st.integers(0, 60), st.integers(0, 300), st.integers(0, 300))
def test_more_of_anything_never_archives_less(fleet, later, grown, fuller):
    """A fuller disk, a longer log and a later hour only ever add to what goes."""
    _, active, disks, _, _ = fleet
    fuller_disks = [disk._replace(used=disk.used + fuller) for disk in disks]
    before = {each.start for each in decided(fleet)}
    after = decided(
        fleet,
        now_ns=NOW + later * MINUTE,
        active_bytes=active + grown,
        disks=fuller_disks,
        active_messages=active // 3 + grown,
    )
    assert before <= {each.start for each in after}


def test_one_full_disk_of_three_archives_nothing():
    """An unrelated file filled one node's disk for 8 s, and every node lost its history."""
    files, policy = files_of([10] * 5, range(5)), Policy(time=0, disk=90)
    full, empty = DiskReport("a", 100, 99), DiskReport("b", 100, 10)
    for disks, count in (
        ([full, empty, empty], 0), ([full, empty], 0), ([full], 0), ([], 0),
        ([full, full], 1), ([full, full, empty], 1), ([full] * 3, 1),
    ):  # fmt: skip
        assert len(decide(policy, files, 0, disks, now_ns=NOW, nodes=3)) == count, disks
    assert len(decide(policy, files, 0, [full], now_ns=NOW, nodes=1)) == 1


@given(FLEETS)
def test_a_lease_holds_against_time_and_limit_and_the_disk_rule_says_when_it_wins(fleet):
    """A backup may take an hour; a full disk cannot wait for it."""
    files, _, _, _, leases = fleet
    decisions = decided(fleet)
    held = min((each.first_held(files, NOW) for each in leases), default=len(files))
    for place, each in enumerate(decisions):
        if place >= held:
            assert each.reason.startswith("disk, over the lease of ")
        else:
            assert each.reason in {"time", "limit", "disk", "messages"}
    assert {each.start for each in decisions} <= {each.start for each in decided(fleet, leases=[])}


def test_a_lease_is_bounded_by_its_bytes_and_its_end():
    """A job that died would otherwise hold the log for ever."""
    files = files_of([10] * 5, range(5))
    lease = Lease("spark", files[1].start, NOW + 1, 25)
    assert lease.first_held(files, NOW) == 3
    assert Lease("spark", files[1].start, NOW + 1, 1000).first_held(files, NOW) == 1
    assert lease.first_held(files, NOW + 1) == len(files)
    assert parse_lease(lease.text()) == lease
    asked = {"holder": "spark", "start": "0.1.0", "seconds": LEASE_S_MAX + 1, "bytes": 5}
    with pytest.raises(Misuse, match="at most"):
        new_lease(asked, NOW)


def test_cost_does_not_depend_on_the_size_of_the_data():
    """A terabyte is a thousand numbers here."""
    small, large = (files_of([size] * 1000, range(1000)) for size in (1, 1 << 30))
    for files in (small, large):
        policy = Policy(time=500, disk=100)
        assert len(decide(policy, files, 0, now_ns=NOW)) == 500


def test_a_limit_larger_than_the_disk_of_a_node_is_refused():
    """It would never be reached: the disk would be full, or its own rule act, before."""
    disks = [DiskReport("n1", 100 << 30, 0), DiskReport("n2", 80 << 30, 0)]
    demand_disks(Policy(limit=80 << 30), disks)
    demand_disks(Policy(), disks)
    demand_disks(Policy(limit=1 << 60), [])
    with pytest.raises(Misuse, match="limit is 90Gi, and the disk of node n2 has 85,899,345,920"):
        demand_disks(Policy(limit=90 << 30), disks)


def test_the_policy_of_the_system_this_one_follows_is_read_as_it_is_written():
    """Operators bring their files along."""
    text = '{\n "time": 10080,\n "limit": "90Gi",\n "disk": 90\n}'
    policy = parse_policy(text)
    assert policy == Policy(10080, 90 << 30, 90)
    assert parse_policy('[policy]\ntime = 10080\nlimit = "90Gi"\ndisk = 90\n') == policy
    assert parse_policy(policy.text()) == policy
    assert parse_policy("{}") == Policy(10080, None, 90)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"tiem": 5}', "no 'tiem'"),
        ('{"time": -1}', "time is"),
        ('{"time": true}', "time is"),
        ('{"limit": "90GB"}', "90Gi"),
        ('{"limit": 0}', "above 0"),
        ('{"disk": 0}', "1 to 100"),
        ('{"disk": 101}', "1 to 100"),
        ("{", "not JSON"),
        ('{"messages": 0}', "above 0, or none"),
        ('{"messages": true}', "messages is 'True'"),
        ('{"messages": "5k"}', "messages is '5k'"),
        ("time", "neither JSON nor TOML"),
        ('{"a":' * 190, "not JSON"),
        ("[1]", "policy"),
        (" " * 2000, "at most"),
    ],
)
def test_an_invalid_policy_is_refused_with_the_reason(text, words):
    """A mistyped limit must not become no limit."""
    with pytest.raises(Misuse, match=words):
        parse_policy(text)


@given(st.integers(1, 1 << 60))
def test_every_size_survives_being_shown(size):
    """A size that is shown can be typed back in."""
    assert parse_limit(show_limit(size)) == size


@given(st.integers(0, 1000), st.none() | st.integers(1, 1 << 60), st.integers(1, 100),
       st.none() | st.integers(1, 1 << 60))  # fmt: skip
def test_every_policy_survives_as_text(minutes, limit, disk, messages):
    """It is kept as text in every node's snapshot."""
    policy = Policy(minutes, limit, disk, messages)
    assert policy_of(json.loads(policy.text())) == policy


@pytest.mark.parametrize(
    ("minutes", "age_s", "expected"),
    [(10080, 86400.0, 86400.0), (30, 86400.0, 1800.0), (0, 3600.0, 3600.0), (1, 5.0, 5.0),
     (30, 0.0, 0.0)],
)  # fmt: skip
def test_a_file_rolls_soon_enough_for_the_rule_time(minutes, age_s, expected):
    """Only a rolled file ages: an idle stream's data would otherwise stay for ever."""
    assert Policy(time=minutes).roll_age_s(age_s) == expected


def test_a_file_with_a_quarter_of_the_messages_is_rolled_soon():
    """A gigabyte of messages would otherwise be kept, and then go all at once."""
    policy = Policy(time=0, messages=1000)
    assert [policy.roll_age_s(86400.0, held) for held in (249, 250, 5000)] == [86400.0, 60.0, 60.0]
    assert policy.roll_age_s(5.0, 250) == 5.0


@given(st.lists(st.integers(0, 10**6), max_size=20), st.integers(-(10**6), 10**6), st.booleans())
def test_no_file_is_younger_than_it_was_seen_to_be(rolled, jump, is_known):
    """A clock that was a year ahead for a second would keep every later file for a year."""
    files = [RolledFile(Position.of(0, n, 0), 8, at, 1) for n, at in enumerate(sorted(rolled))]
    ages, now, passed = Ages(), 10**6, 1000
    assert ages.seen(files, now, 5) == [f._replace(rolled_ns=min(f.rolled_ns, now)) for f in files]
    if not is_known:
        ages.seen([], now, 6)
    aged = ages.seen(files, now + jump, 5 + passed)
    last = now + jump - passed * is_known
    assert [f.rolled_ns for f in aged] == [min(f.rolled_ns, last) for f in files]
    assert [f[:2] for f in aged] == [f[:2] for f in files]


class Interrupted(list):
    """Files that another thread also asks about, fewer of them, whenever they are iterated."""

    def __init__(self, files, ages):
        super().__init__(files)
        self.ages = ages

    def __iter__(self):
        for file in super().__iter__():
            self.ages.seen([], NOW, 1)
            yield file


def test_two_threads_that_ask_for_ages_at_once_do_not_disturb_each_other():
    """A request for a plan could end the deciding thread while the node kept running."""
    ages, files = Ages(), files_of([1, 2, 3], [3, 2, 1])
    assert ages.seen(Interrupted(files, ages), NOW, 1) == files


def test_one_wrong_clock_of_three_changes_nothing():
    """A clock that shows next year would archive everything."""
    year = 365 * 24 * 60 * MINUTE
    assert agreed_ns([NOW, NOW + year, NOW + 5]) == NOW + 5
    assert agreed_ns([NOW - year, NOW, NOW + 5]) == NOW
    assert agreed_ns([NOW, NOW + year]) == NOW


def test_a_jump_ahead_is_believed_after_an_hour_and_one_back_at_once():
    """On a single node only its operator can contradict the clock."""
    clock, jump = SteadyClock(), JUMP_NS * 1000
    assert clock.now_ns(NOW, 0) == NOW
    assert clock.now_ns(NOW + 50, 50) == NOW + 50
    assert clock.now_ns(NOW + jump, 60) == NOW + 60
    assert clock.is_holding
    assert clock.now_ns(NOW + jump + HOLD_NS - 1, HOLD_NS - 1) == NOW + HOLD_NS - 1
    assert clock.now_ns(NOW + jump + HOLD_NS + 61, HOLD_NS + 61) == NOW + jump + HOLD_NS + 61
    assert not clock.is_holding
    assert clock.now_ns(NOW, HOLD_NS + 62) == NOW
    assert clock.now_ns(NOW + jump, HOLD_NS + 63) == NOW + 1
    assert clock.now_ns(NOW + 2, HOLD_NS + 64) == NOW + 2
    assert not clock.is_holding


def manifest_of(count, gone):
    """Return the manifest of `count` rolled files, of which the oldest are archived."""
    manifest = Manifest()
    manifest.add(LogIdentity(MERGED, "flights", "out", "0" * 32, 0))
    for place in range(count):
        start = Position.of(0, place, 0)
        manifest.add(Rolled(start, 100, place, place + 1, 0, 0, NOW - (count - place) * MINUTE))
        if place < gone:
            manifest.add(Archived(start, NOW, "time"))
    return manifest


def test_a_plan_has_every_file_with_bytes_and_touches_none():
    """An operator looks before changing a policy."""
    manifest, policy = manifest_of(5, 2), Policy(time=2, disk=100)
    files = rolled_files(manifest, archived_to(manifest))
    assert [file.start.roll for file in files] == [2, 3, 4]
    rows = planned(policy, kept_files(manifest), decide(policy, files, 0, now_ns=NOW))
    assert [(row.file, row.goes, row.reason) for row in rows] == [
        ("log.0.2", True, "time"), ("log.0.3", True, "time"), ("log.0.4", False, ""),
    ]  # fmt: skip
    assert rows[2].expires_ns == NOW + MINUTE
    assert len(manifest.archived) == 2
    assert (active_messages(manifest, 9), active_messages(Manifest(), 9)) == (4, 9)
    off = planned(Policy(time=0), kept_files(manifest), [])
    assert [row.expires_ns for row in off] == [None] * 3


class Sequencing:
    """A node's sequencing as admin requests see it: a view, orders, and questions."""

    def __init__(self, order=None, **view):
        fields = {"leads": True, "end": Position(0), "is_executing": False, "archived_to": START}
        self.view = SimpleNamespace(**{**fields, **view})
        self.order = order or (lambda _instruction: None)

    def ask(self, question):
        """Answer between two steps, that is at once."""
        return question()


def test_only_the_leader_says_that_there_is_nothing_to_roll():
    """A follower may lag behind what a publisher saw confirmed; a backup would miss it."""
    engine = SimpleNamespace(leader="n2")
    member = SimpleNamespace(reads=Confirmed())
    admin = NodeAdmin(None, Sequencing(leads=False, engine=engine), member, None)
    with pytest.raises(Refused, match="n2 leads"):
        admin.verbs["roll"].do({}, None)


def test_a_leader_executes_what_was_confirmed_before_it_says_that_there_is_nothing_to_roll():
    """Another node may have been first, and the publisher asks at once."""
    looks = []

    class Executing:
        @property
        def view(self):
            looks.append(1)
            engine = SimpleNamespace(term=1)
            return SimpleNamespace(leads=True, end=START, executed=len(looks), engine=engine)

        def ask(self, question):
            return question()

    member = SimpleNamespace(reads=Confirmed(7))
    admin = NodeAdmin(None, Executing(), member, None)
    assert admin.verbs["roll"].do({}, None) == {"rolled": None}
    assert len(looks) >= 7


@pytest.mark.parametrize("wanted", [{"messages": 5}, {"time": 60}])
def test_a_limit_by_messages_waits_until_every_node_can_read_it(wanted):
    """A node of an earlier version would archive nothing by a policy that it does not know."""
    level = json.dumps({"level": 11, "by": "x", "at_ns": 1})
    engine, orders = SimpleNamespace(term=1, leader="n1"), []
    view = {"notes": {"level": level}, "executed": 9, "engine": engine, "number": 0}
    member = SimpleNamespace(reads=Confirmed(), proposals=SimpleNamespace(founding=None))
    archiver = SimpleNamespace(disks=list, leases=[])
    sequencing = Sequencing(orders.append, **view)

    def wait(need):
        if not need.is_over():
            raise Refused(need.code, "ordered and not executed here")

    admin = NodeAdmin(None, sequencing, member, archiver, wait=wait)
    with pytest.raises(Refused) as refused:
        admin.verbs["set-policy"].do({"policy": wanted}, None)
    needs_level = "messages" in wanted
    assert (refused.value.code == "level") is needs_level, refused.value
    assert bool(orders) is not needs_level


@pytest.mark.parametrize(
    ("do", "request_"),
    [
        ("offloaded", {"text": json.dumps({"url": "/backup" * 1000, "to": "0.1.0"})}),
        ("offloaded", {"text": '{"url": "\ud800", "to": "0.1.0"}'}),
        ("release", {"holder": "h" * 300}),
    ],
)
def test_a_request_that_no_instruction_can_express_is_refused_at_once(do, request_):
    """Found out later, it would end the thread that the node depends on."""
    orders = []
    node = SimpleNamespace(name="n1", may_operate=True)
    admin = NodeAdmin(None, Sequencing(orders.append), None, None)
    with pytest.raises(Misuse, match="a note"):
        admin.verbs[do].do(request_, node)
    assert not orders


def test_a_change_that_is_not_decided_does_not_hold_up_the_others():
    """Every cursor's acknowledgement waited ten seconds for a roll that no majority decided."""
    orders, member = [], SimpleNamespace(reads=Confirmed())
    sequencing = Sequencing(
        orders.append, executed=0, engine=SimpleNamespace(term=1), end=Position(64), notes={}
    )
    admin = NodeAdmin(None, sequencing, member, None)
    slow = threading.Thread(target=admin.verbs["roll"].do, args=[{}, None], daemon=True)
    slow.start()
    assert eventually(lambda: orders)
    identity = SimpleNamespace(name="spark", may_operate=False)
    assert admin.verbs["release"].do({}, identity) == {"released": "spark"}
    assert len(orders) == 2
    assert slow.is_alive()
    sequencing.view.end = Position.of(0, 1, 0)
    slow.join()


def test_a_lease_that_is_renewed_while_its_end_is_seen_is_kept():
    """A job that renews in time, by its clock, must not lose the files it still reads."""
    ended = Lease("spark", Position(0), NOW - 1, 1)
    renewed = Lease("spark", Position(0), NOW + MINUTE, 1)
    ledger = Ledger(notes={LEASE_NOTE + "spark": ended.text()})
    member = Member(
        "a", "a", engine=SimpleNamespace(
            leads=True, leader="a",
            last_change=SimpleNamespace(term=0, index=0, before={}, now={}), members={},
        ), journal=None, planner=None,
        restart_check=SimpleNamespace(claim=Claim(0, StartChain(1, (1,)), Reach(), Reach())),
        executor=SimpleNamespace(ledger=ledger, logs=SimpleNamespace(records=None)), send=None,
        now_ns=lambda: NOW,
    )  # fmt: skip
    member.order(Note(NOW, LEASE_NOTE + "spark", renewed.text()))  # when it had found no orders
    for note in ended_leases(ledger.notes, NOW, NOW):
        member.order(note, first=True)
    for note in member.proposals.orders:
        ledger.set_note(note.name, note.text)
    assert leases_of_notes(ledger.notes) == [renewed]


def test_a_lease_whose_renewal_is_decided_elsewhere_is_kept():
    """A leader that has not executed its log sees the old lease end, and not its renewal."""
    ended = Lease("spark", Position(0), NOW - 1, 1)
    renewed = Lease("spark", Position(0), NOW + MINUTE, 1)
    orders = ended_leases({LEASE_NOTE + "spark": ended.text()}, NOW, NOW)
    assert len(orders) == 1
    for known, left in ((ended, []), (renewed, [renewed])):
        ledger = Ledger(notes={LEASE_NOTE + "spark": known.text()})
        for note in orders:
            ledger.carry_out(decode_instruction(encode_instruction(note)))
        assert leases_of_notes(ledger.notes) == left


def test_what_was_set_aside_is_not_reported_durable_until_it_is_copied_again():
    """A majority would count bytes that are gone, and let the instructions behind them go."""
    sent = []
    executor = SimpleNamespace(
        ledger=Ledger(end=Position.of(0, 1, 800)), lacks_log=False,
        appender=SimpleNamespace(
            directory="out", next_place=Position.of(0, 1, 800), manifest=Manifest()
        ),
    )  # fmt: skip
    member = SimpleNamespace(
        name="a", handlers={}, executor=executor, engine=SimpleNamespace(leads=False),
        holdings=SimpleNamespace(others=["b"], voters={"a", "b"}),
        send=lambda _to, _kind, body: sent.append(
            decode_retention_report(body, sender="a", heard_s=0).durable_index
        ),
    )  # fmt: skip
    sweeper = NodeSweeper(SimpleNamespace(emptied_to=START))
    for index, end in ((10, Position.of(0, 1, 0)), (20, Position.of(0, 1, 400))):
        sweeper.saved(Ledger(index=index, end=end).merged_ends)
    machine = Machine(lambda: NOW, lambda: 0, lambda _path: (3, 2, 1))
    retention = Retention(None, member, sweeper, machine)
    retention.has_durable(30)
    retention.turn(0)
    executor.lacks_log, executor.appender.next_place = True, Position.of(0, 1, 0)
    retention.turn(1)
    executor.lacks_log, executor.appender.next_place = False, Position.of(0, 1, 800)
    retention.turn(2)
    assert sent == [30, 10, 30]


def test_what_is_decided_between_two_looks_at_the_clocks_happens_now():
    """A session opened after a rest was recorded with the time of the last look, 19 s early."""
    clock = SimpleNamespace(ns=0)
    machine = Machine(lambda: NOW + clock.ns, lambda: clock.ns, lambda _path: (3, 2, 1))
    executor = SimpleNamespace(
        ledger=Ledger(end=Position.of(0, 1, 800), index=3), lacks_log=False,
        appender=SimpleNamespace(
            directory="out", next_place=Position.of(0, 1, 800), manifest=Manifest()
        ),
    )  # fmt: skip
    member = SimpleNamespace(
        name="a", handlers={}, executor=executor, engine=SimpleNamespace(leads=False),
        holdings=SimpleNamespace(others=[], voters={"a"}, reached_by_majority=lambda _each: 0),
    )  # fmt: skip
    retention = Retention(None, member, NodeSweeper(SimpleNamespace(emptied_to=START)), machine)
    looked = []
    clock.ns = 5 * 10**9
    retention.turn(5.0)
    looked.append(retention.now_ns)
    clock.ns = 15 * 10**9
    looked.append(retention.now_ns)
    assert looked == [NOW + 5 * 10**9, NOW + 15 * 10**9]


def test_a_log_that_has_just_begun_is_not_as_old_as_the_machine():
    """A node on a machine that had run for a day rolled its first file at the first message."""
    growth, booted_ns, now_ns = MergedGrowth(), 40 * 24 * 60 * MINUTE, NOW
    ledger = Ledger(active_since_ns=now_ns)
    assert growth.active_age_ns(ledger, now_ns, booted_ns) == 0
    assert growth.active_age_ns(ledger, now_ns - MINUTE, booted_ns + MINUTE) == MINUTE
    assert growth.active_age_ns(ledger, now_ns + 2 * MINUTE, booted_ns + MINUTE) == 2 * MINUTE


def test_leases_requested_at_once_do_not_exceed_the_limit():
    """Each holds files of all nodes, and a bug in a job asks from many threads."""
    held = [Lease(f"job{number}", Position(0), NOW + MINUTE, 1) for number in range(LEASES_MAX - 1)]
    ledger = Ledger(notes={LEASE_NOTE + each.holder: each.text() for each in held})
    looked, threads = threading.Event(), []

    def ask(holder):
        request = {"start": "0.0.0", "seconds": 60, "bytes": 1}
        with suppress(Refused):
            admin.verbs["lease"].do(request, SimpleNamespace(name=holder))

    class Renewing(Sequencing):
        @property
        def view(self):
            if threading.current_thread() in threads:
                looked.set()
            return SimpleNamespace(
                notes=ledger.notes.copy(), archived_to=START, leads=True, executed=0,
                engine=SimpleNamespace(term=1),
            )  # fmt: skip

        @view.setter
        def view(self, _view):
            pass

    def order(note):
        if not threads:
            threads.append(threading.Thread(target=ask, args=["nas"]))
            threads[0].start()
            looked.wait(0.2)  # it must not happen, so there is no event to wait for
        ledger.set_note(note.name, note.text)

    member = SimpleNamespace(reads=Confirmed())
    admin = NodeAdmin(None, Renewing(order), member, SimpleNamespace(now_ns=NOW))
    ask("spark")
    threads[0].join()
    holders = {lease.holder for lease in leases_of_notes(ledger.notes)}
    assert holders == {"spark", *(each.holder for each in held)}

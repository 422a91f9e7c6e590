"""Groups on the nodes: each message is with one member, whatever dies, pauses or leads."""

import threading
import time
from collections import Counter
from random import Random

import pytest
from logs import MergedLog
from reading_groups import ALICE, NAS, SPARK, Nodes

from archiver.lease import RolledFile
from rt.errors import Misuse, Refused
from rt.format.message import Batch
from rt.log.files.directory import LogDirectory
from rt.log.read.reader import Reader
from rt.node.notes.reading_group import (
    CLAIMS_MAX,
    GROUP_NOTE,
    RangeClaim,
    ReadingGroup,
    groups_of_notes,
    parse_reading_group,
)
from rt.node.notes.registered_cursor import CURSOR_NOTE, RegisteredCursor
from rt.node.readers.claims_heard import ClaimsHeard
from rt.node.retain.retention import LEASE_NOTE, leases_of_notes
from rt.position import Position
from sequencer.ledger.instruction import NOTE_BYTES_MAX

JOIN = {"name": "etl", "silence_s": 1.0, "max_deliveries": 3}


@pytest.fixture
def nodes(tmp_path):
    """A log of 100 messages in 10 frames, and its leaders."""
    with MergedLog(str(tmp_path)) as log:
        for number in range(10):
            log.merge("jfk", [b"%d" % (10 * number + each) for each in range(10)])
        return Nodes(tmp_path, log.appender.end, 100)


def places(directory, claim):
    """The messages of a claim, as a member reads them: by position."""
    found = {}
    reader = Reader(LogDirectory(str(directory)), Position(claim["first"]))
    while isinstance(batch := reader.poll(), Batch):
        found |= {at: int(each) for at, each in zip(batch.places, batch.payloads(), strict=True)}
    reader.close()
    return {at: each for at, each in found.items() if claim["first"] <= at < claim["end"]}


def worked(leader, member="a", **said):
    """Say what a member has done; return the answer."""
    return leader.work({"name": "etl", "member": member, "messages": 10, **said}, SPARK)


def test_ranges_do_not_overlap_and_are_all_there_is(nodes):
    """A message in two ranges is handled twice, one in none never."""
    leader = nodes.leader()
    leader.join(JOIN, SPARK)
    seen, held = [], []
    for turn in range(200):
        answer = worked(leader, "ab"[turn % 2], held=held)
        held += [each["number"] for each in answer["claims"]]
        for claim in answer["claims"]:
            seen += places(nodes.directory, claim).values()
        if not answer["claims"]:
            break
    assert seen == list(range(100))
    assert nodes.group().position == 0, "nothing is done yet"
    ends = {claim.number: claim.end for claim in nodes.group().claims}
    done = [[number, int(end)] for number, end in ends.items()]
    answer = worked(leader, held=held, done=done)
    assert not nodes.group().claims
    assert answer["position"] == str(nodes.group().next)


def test_the_rest_is_divided_but_not_below_what_a_request_is_worth(nodes):
    """Parts of parts of parts would make members wait for requests more than they work."""
    leader = nodes.leader()
    leader.join(JOIN, SPARK)
    sizes, held = [], []
    for turn in range(100):
        answer = worked(leader, "ab"[turn % 2], held=held, messages=1000, at_least=8)
        for claim in answer["claims"]:
            held.append(claim["number"])
            sizes.append(len(places(nodes.directory, claim)))
    assert sum(sizes) == 100
    assert sizes == sorted(sizes, reverse=True), "it is fair towards the end"
    assert sizes[0] == 50
    assert all(size == 8 for size in sizes[-4:-1])


def test_a_range_is_handed_out_again_once_its_holder_is_silent(nodes):
    """Its messages are marked; what was done before is not among them."""
    leader = nodes.leader()
    leader.join(JOIN, SPARK)
    (first,) = worked(leader)["claims"]
    at = sorted(places(nodes.directory, first))
    worked(leader, held=[first["number"]], done=[[first["number"], at[3]]], messages=0)
    for _ in range(5):
        nodes.now_s += 0.9
        worked(leader, held=[first["number"]], messages=0)
        (other,) = worked(leader, "b")["claims"]
        assert other["first"] >= first["end"]
    nodes.now_s += 1.0
    (again,) = worked(leader, "b")["claims"]
    assert (again["first"], again["end"], again["deliveries"]) == (at[3], first["end"], 2)
    late = worked(leader, held=[first["number"]], done=[[first["number"], at[5]]], messages=0)
    assert late["lost"] == [first["number"]]
    assert nodes.group().find_claim(again["number"]).first == at[3], "it changes nothing"


def test_a_new_leader_gives_the_holders_their_time(nodes):
    """It has heard nothing yet; that is no sign of death."""
    leader = nodes.leader()
    leader.join(JOIN, SPARK)
    (first,) = worked(leader)["claims"]
    other = nodes.leader()
    (second,) = worked(other, "b")["claims"]
    assert second["first"] == first["end"]
    nodes.now_s += 1.0
    (again,) = worked(other, "b", held=[second["number"]])["claims"]
    assert (again["first"], again["deliveries"]) == (first["first"], 2)


def test_a_message_that_fails_is_alone_and_the_rest_goes_on(nodes):
    """One bad message must not hold up its neighbours, nor make them dead letters."""
    leader = nodes.leader()
    leader.join({**JOIN, "dead_letters": "dead"}, SPARK)
    (claim,) = worked(leader)["claims"]
    at = sorted(places(nodes.directory, claim))
    number = claim["number"]
    worked(leader, held=[number], failed=[[number, at[4], 2.0]], messages=0)
    rest = nodes.group().find_claim(number)
    assert (rest.first, rest.end) == (at[4] + 1, claim["end"])
    worked(leader, held=[number], done=[[number, claim["end"]]], messages=0)
    assert nodes.group().position == at[4]
    for deliveries in (2, 3, 4):
        (early,) = worked(leader, "b")["claims"]
        assert early["first"] != at[4], "not before its delay"
        worked(leader, "b", done=[[early["number"], early["end"]]], messages=0)
        nodes.now_s += 2.0
        (again,) = worked(leader, "b")["claims"]
        assert (again["first"], again["end"]) == (at[4], at[4] + 1)
        assert (again["deliveries"], again["is_dead"]) == (deliveries, deliveries > 3)
        worked(leader, "b", failed=[[again["number"], at[4], 2.0]], messages=0)


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_members_that_die_make_no_dead_letter_before_the_cause_is_known(nodes, most):
    """The first message of a range may be far from the one that killed its members."""
    leader = nodes.leader()
    leader.join({**JOIN, "dead_letters": "dead", "max_deliveries": most}, SPARK)
    dead = []
    for turn in range(6):
        (claim,) = worked(leader, f"m{turn}")["claims"]
        dead.append(claim["is_dead"])
        nodes.now_s += 1.0
    assert dead.index(True) == max(most, 3)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_message_that_handlers_reject_is_dead_after_exactly_so_many_deliveries(nodes, most):
    """It is alone, and each of them had it; nothing has to be found out."""
    leader = nodes.leader()
    leader.join({**JOIN, "dead_letters": "dead", "max_deliveries": most}, SPARK)
    (claim,) = worked(leader)["claims"]
    for _ in range(most):
        assert not claim["is_dead"]
        failed = [[claim["number"], claim["first"], 0.0]]
        done = [[claim["number"], claim["end"]]]
        worked(leader, failed=failed, done=done, messages=0)
        (claim,) = worked(leader)["claims"]
    assert claim["is_dead"]


def test_a_suspect_range_is_with_a_member_that_holds_nothing_else(nodes):
    """Where a member dies with two ranges, the other one would be suspected as well."""
    leader = nodes.leader()
    leader.join({**JOIN, "dead_letters": "dead"}, SPARK)
    (first,) = worked(leader)["claims"]
    nodes.now_s += 1.0
    (second,) = worked(leader, "b")["claims"]
    nodes.now_s += 1.0
    assert (second["first"], second["deliveries"]) == (first["first"], 2)
    (busy,) = worked(leader, "c", is_idle=True)["claims"]
    assert busy["deliveries"] == 3
    assert not worked(leader, "c", held=[busy["number"]], is_idle=False)["claims"], "one is enough"
    (fresh,) = worked(leader, "d", is_idle=True)["claims"]
    nodes.now_s += 0.5
    worked(leader, "d", held=[fresh["number"]], messages=0)
    nodes.now_s += 0.6
    assert not worked(leader, "d", held=[fresh["number"]], is_idle=False)["claims"]
    held = [fresh["number"]]
    (again,) = worked(leader, "d", held=held, is_idle=True)["claims"]
    assert (again["first"], again["deliveries"]) == (first["first"], 4)


def test_a_range_that_is_given_back_was_not_delivered(nodes):
    """A member that ends well had it in its queue only."""
    leader = nodes.leader()
    leader.join(JOIN, SPARK)
    (claim,) = worked(leader)["claims"]
    worked(leader, given_back=[claim["number"]], messages=0)
    (again,) = worked(leader, "b")["claims"]
    assert (again["first"], again["deliveries"]) == (claim["first"], 1)


def test_a_sign_of_life_and_an_empty_answer_cost_no_agreement(nodes):
    """They come several times a second from each member."""
    leader = nodes.leader()
    leader.join(JOIN, SPARK)
    held = []
    while claims := worked(leader, held=held)["claims"]:
        held += [each["number"] for each in claims]
    nodes.between = lambda: pytest.fail("the nodes had to agree on something")
    assert not worked(leader, held=held)["claims"]


def test_a_group_is_moved_and_forgotten_by_its_owner_or_an_operator(nodes):
    """Members of the old place must not acknowledge the new one."""
    leader = nodes.leader()
    leader.join(JOIN, SPARK)
    (claim,) = worked(leader)["claims"]
    for verb in (leader.reset, leader.forget):
        with pytest.raises(Refused, match="belongs to subscriber spark"):
            verb({"name": "etl", "start": "latest"}, NAS)
    leader.reset({"name": "etl", "start": "last:5"}, ALICE)
    done = [[claim["number"], claim["end"]]]
    assert worked(leader, done=done, messages=0)["lost"] == [claim["number"]]
    seen = []
    while claims := worked(leader)["claims"]:
        (found,) = claims
        seen += places(nodes.directory, found).values()
        worked(leader, done=[[found["number"], found["end"]]], messages=0)
    assert seen == list(range(95, 100))
    leader.forget({"name": "etl"}, ALICE)
    with pytest.raises(Refused, match="there is no group 'etl'"):
        worked(leader)


def test_members_of_a_forgotten_group_acknowledge_nothing_of_the_next_one(nodes):
    """It may be begun again under its name before they have noticed."""
    leader = nodes.leader()
    leader.join(JOIN, SPARK)
    (old,) = worked(leader)["claims"]
    leader.forget({"name": "etl"}, ALICE)
    forgotten_ms = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == forgotten_ms:
        pass  # no person forgets and begins within a millisecond
    leader.join(JOIN, SPARK)
    (new,) = worked(leader, "b")["claims"]
    answer = worked(leader, done=[[old["number"], old["end"]]], messages=0)
    assert answer["lost"] == [old["number"]]
    assert nodes.group().find_claim(new["number"]).first == new["first"]


class Signs(ClaimsHeard):
    """Signs of life that a leader has heard, in order."""

    def __init__(self, steady_s):
        super().__init__(steady_s)
        self.noted, self.changed = [], threading.Condition()

    def hear(self, group, number):
        super().hear(group, number)
        with self.changed:
            self.noted.append((group, number))
            self.changed.notify_all()

    def member(self, group, name):
        super().member(group, name)
        self.noted.append((group, name))


@pytest.fixture
def signs(nodes):
    """The signs of each leader that is made from now on."""
    made = []
    nodes.heard = lambda steady_s: made.append(Signs(steady_s)) or made[-1]
    return made


def test_words_of_those_who_are_no_members_leave_nothing_behind(nodes, signs):
    """A peer may make up as many names as it likes."""
    leader = nodes.leader()
    leader.join(JOIN, SPARK)
    for number in range(20):
        with pytest.raises(Refused, match="there is no group"):
            leader.work({"name": f"g{number}", "member": "a"}, SPARK)
    with pytest.raises(Refused, match="belongs to subscriber spark"):
        leader.work({"name": "etl", "member": "stranger"}, NAS)
    worked(leader, held=list(range(1000)), messages=0)
    assert signs[0].noted == [("etl", "a")]


def test_a_member_that_waits_for_an_agreement_is_alive(nodes, signs):
    """Another one's change takes long, and is tried again before it is this member's turn."""
    leader, other = nodes.leader(), nodes.leader()
    leader.join(JOIN, SPARK)
    (first,) = worked(leader)["claims"]
    said = {"held": [first["number"]], "messages": 0}
    waiting = threading.Thread(target=lambda: worked(leader, **said))

    def between():
        nodes.between = lambda: None
        nodes.now_s += 5.0
        worked(other, "c")
        signs[0].noted.clear()
        waiting.start()
        with signs[0].changed:
            assert signs[0].changed.wait_for(lambda: signs[0].noted, 60), "it was not heard"

    nodes.between = between
    (found,) = worked(leader, "b")["claims"]
    waiting.join(60)
    assert found["first"] != first["first"], "it was handed out twice"


def test_a_group_keeps_its_settings_and_its_owner(nodes):
    """Two programs with different ideas of one group are told, not mixed."""
    leader = nodes.leader()
    leader.join(JOIN, SPARK)
    leader.join(JOIN, SPARK)
    with pytest.raises(Refused, match="was begun with max_deliveries = 3, not 4"):
        leader.join({**JOIN, "max_deliveries": 4}, SPARK)
    with pytest.raises(Refused, match="belongs to subscriber spark"):
        leader.join(JOIN, NAS)
    with pytest.raises(Refused, match="not granted leases"):
        leader.join({**JOIN, "name": "other", "pin_bytes": 7}, NAS)


def test_a_pin_holds_what_is_not_done(nodes):
    """A range that waits is not archived under its group."""
    leader = nodes.leader()
    leader.join({**JOIN, "pin_bytes": 1000}, SPARK)
    (claim,) = worked(leader)["claims"]
    worked(leader, done=[[claim["number"], claim["end"]]])
    (pin,) = leases_of_notes(nodes.ledger.notes)
    assert (pin.holder, pin.start) == ("group.etl", claim["end"])


@pytest.mark.parametrize("name", ["g" * 64, "a--b", "a-_b", "7"])
def test_whatever_a_group_or_cursor_is_called_it_can_pin(nodes, name):
    """Every node looks at the leases several times a second: an error there would end them all."""
    leader = nodes.leader()
    leader.join({**JOIN, "name": name, "pin_bytes": 1000}, SPARK)
    cursor = RegisteredCursor(name, "spark", pin_bytes=7)
    notes = {**nodes.ledger.notes, CURSOR_NOTE + name: cursor.text()}
    holders = {pin.holder for pin in leases_of_notes(notes)}
    assert holders == {f"cursor.{name}", f"group.{name}"}


@pytest.mark.parametrize("kind", [CURSOR_NOTE, GROUP_NOTE, LEASE_NOTE])
@pytest.mark.parametrize("text", ["{}", "x", '{"name": "new", "kind": "of a later version"}'])
def test_a_note_of_another_version_holds_every_file_and_ends_no_node(nodes, kind, text):
    """What it says is unknown; that of the others is not."""
    leader = nodes.leader()
    leader.join({**JOIN, "pin_bytes": 1000}, SPARK)
    notes = {**nodes.ledger.notes, f"{kind}new": text}
    ours, unreadable = leases_of_notes(notes)
    assert (ours.holder, unreadable.holder) == ("group.etl", "unreadable")
    files = [RolledFile(Position(file), 1 << 40, 0, 1) for file in (0, 1 << 32)]
    assert unreadable.first_held(files, time.time_ns()) == 0
    assert [each.name for each in groups_of_notes(notes)] == ["etl"]
    nodes.ledger.notes[f"{kind}new"] = text
    assert leader.show({}, SPARK)["groups"][0]["group"] == "etl"


@pytest.mark.parametrize(
    "said",
    [{"done": [[1, 1 << 62]]}, {"failed": [[1, "x", 0]]}, {"held": "ab"}, {"member": ""},
     {"done": [[1]]}, {"failed": [[1, 1 << 62, 0]]}, {"member": "a\nb"}, {"messages": "x"}],
)  # fmt: skip
def test_a_wrong_request_is_refused_and_changes_nothing(nodes, said):
    """A peer's words become the state of every node."""
    leader = nodes.leader()
    leader.join(JOIN, SPARK)
    worked(leader)
    before = nodes.group()
    held = {1: before.claims[0].number}
    said = {
        verb: [[held.get(each[0], each[0]), *each[1:]] for each in told]
        if isinstance(told, list) else told
        for verb, told in said.items()
    }  # fmt: skip
    with pytest.raises(Misuse):
        worked(leader, **said)
    assert nodes.group() == before


def test_a_full_group_fits_in_a_note_and_is_read_again():
    """Every node must be able to decode what the leader proposes."""
    far = Position((1 << 63) - 1)
    claims = tuple(RangeClaim((1 << 53) - 9 - n, Position(0), far, 1000) for n in range(CLAIMS_MAX))
    group = ReadingGroup(
        "g" * 64, "o" * 63, "subscriber", far, (1 << 53) - 9, claims, 3600.0, 1000, "d" * 63,
        1 << 40, (1 << 63) - 1,
    )  # fmt: skip
    assert len(group.text()) < NOTE_BYTES_MAX
    assert parse_reading_group(group.text()) == group
    with pytest.raises(Misuse, match="48 claims"):
        group.handed_out(far)
    bad = group.failed(group.claims[0], Position(7))
    assert (len(bad.claims), bad.claims[-1].first, bad.claims[-1].end) == (CLAIMS_MAX, 7, far)


@pytest.mark.parametrize("seed", range(12))
def test_nothing_stays_unhandled_and_repeats_are_marked(nodes, seed):
    """Members that die, pause, fail and return, two nodes that lead, in any order."""
    random = Random(seed)
    leaders = [nodes.leader() for _ in range(3)]
    leaders[0].join({**JOIN, "dead_letters": "dead"}, SPARK)
    handled, unmarked, last = Counter(), Counter(), 0
    members = {name: Member(name) for name in "abcd"}
    storm, depth = 300, 0

    def act():
        nonlocal depth
        leader = leaders[(turn // 30 + depth) % 3] if turn < storm else leaders[depth]
        depth += 1
        member = random.choice([each for each in members.values() if not each.is_busy])
        member.is_busy = True
        try:
            member.act(leader, nodes.directory, random, handled, unmarked, kill=turn < storm)
        finally:
            depth, member.is_busy = depth - 1, False

    def between():
        if depth < 3 and random.random() < 0.2:
            act()

    nodes.between = between
    turn = 0
    while nodes.group().claims or len(handled) < 100 or turn < storm:
        turn += 1
        assert turn < 3000, "it does not end"
        nodes.now_s += random.choice([0, 0.1, 0.4])
        act()
        assert nodes.group().position >= last
        last = nodes.group().position
    assert all(count <= 1 for count in unmarked.values()), "a repeat was not marked"


class Member:
    """One simulated member: the claims it believes it holds, and what it has handled."""

    def __init__(self, name):
        self.name, self.claims, self.is_busy = name, {}, False

    def act(self, leader, directory, random, handled, unmarked, *, kill):
        """Handle a little, and say so; or pause, or die."""
        chance = random.random() if kill else 1.0
        if chance < 0.1:
            self.claims.clear()
        if chance >= 0.3:
            done, failed = self.handle(directory, random, handled, unmarked, kill=kill)
            self.say(leader, directory, done, failed)

    def handle(self, directory, random, handled, unmarked, *, kill):
        """Handle some messages of each claim; return what is done, and what failed."""
        done, failed = [], []
        for number, (claim, left) in list(self.claims.items()):
            for at in left[: random.randrange(4)]:
                if kill and random.random() < 0.1:
                    failed.append([number, at, 0.5])
                else:
                    handled[left_value(directory, at)] += 1
                    unmarked[left_value(directory, at)] += claim["deliveries"] < 2
                left.remove(at)
                if failed:
                    break
            done.append([number, left[0] if left else claim["end"]])
            if failed and failed[-1][0] == number:
                done[-1][1] = failed[-1][1]
        return done, failed

    def say(self, leader, directory, done, failed):
        """Send a request to a leader, and take the ranges that it gives."""
        try:
            answer = worked(leader, self.name, held=list(self.claims), done=done, failed=failed)
        except Refused:
            return  # it was changed by others all the time
        for number in answer["lost"]:
            self.claims.pop(number, None)
        self.claims = {number: each for number, each in self.claims.items() if each[1]}
        for claim in answer["claims"]:
            self.claims[claim["number"]] = (claim, sorted(places(directory, claim)))


def left_value(directory, at):
    """The message at a position."""
    return places(directory, {"first": at, "end": at + 1})[at]


def test_groups_and_cursors_share_their_room(nodes):
    """Notes are few, and every snapshot has all of them."""
    leader = nodes.leader()
    for number in range(24):
        leader.join({**JOIN, "name": f"g{number}"}, SPARK)
    with pytest.raises(Refused, match="24 of 24 by subscriber spark"):
        leader.join({**JOIN, "name": "more"}, SPARK)
    assert len(groups_of_notes(nodes.ledger.notes)) == 24


EMPTY = ({}, Position(0), 0)  # what a leader knows that has not executed its log


def test_a_leader_that_has_not_executed_its_log_calls_no_group_unknown(nodes):
    """Members took that as final: all of them ended when the leader was killed."""
    nodes.leader().join(JOIN, SPARK)
    nodes.behind = EMPTY
    (claim,) = worked(nodes.leader())["claims"]
    assert len(places(nodes.directory, claim)) == 10
    assert nodes.barriers == 2, "one to join, one before the refusal"
    nodes.behind = EMPTY
    assert nodes.leader().show({"name": "etl"}, SPARK)["groups"]
    with pytest.raises(Refused, match="there is no group 'other'"):
        nodes.leader().show({"name": "other"}, SPARK)


def test_a_leader_that_has_not_executed_its_log_calls_no_claim_lost(nodes):
    """The member would drop what it works on, and its acknowledgement would not count."""
    leader = nodes.leader()
    leader.join(JOIN, SPARK)
    older = dict(nodes.ledger.notes)
    (claim,) = worked(leader)["claims"]
    nodes.behind = (older, nodes.end, nodes.number)
    number, end = claim["number"], claim["end"]
    answer = worked(nodes.leader(), held=[number], done=[[number, end]], messages=0)
    assert not answer["lost"]
    assert not nodes.group().claims, "and what is done counts"


def test_a_leader_that_has_not_executed_its_log_calls_nothing_done(nodes):
    """Both members ended without an error, with a third of the messages never handed out."""
    leader = nodes.leader()
    leader.join(JOIN, SPARK)
    first = worked(leader, messages=100)["claims"][0]
    worked(leader, done=[[first["number"], first["end"]]], messages=0)
    assert nodes.group().next < nodes.end
    nodes.behind = (dict(nodes.ledger.notes), nodes.group().next, 50)
    answer = worked(nodes.leader())
    assert not answer["claims"]
    assert not answer["is_done"]


def test_a_group_that_is_joined_by_a_lagging_leader_ends_where_the_stream_does(nodes):
    """A member that does not follow reads up to there."""
    nodes.leader().join(JOIN, SPARK)
    nodes.behind = (dict(nodes.ledger.notes), Position(64), 1)
    assert nodes.leader().join(JOIN, SPARK)["merged_end"] == str(nodes.end)


def test_only_a_no_costs_a_round_of_the_nodes(nodes):
    """Members of a busy stream ask hundreds of times a second."""
    leader = nodes.leader()
    leader.join(JOIN, SPARK)
    held = []
    for _ in range(5):
        held += [each["number"] for each in worked(leader, held=held)["claims"]]
        worked(leader, held=held, messages=0)
    assert nodes.barriers == 1, "that of joining"
    worked(leader, held=[1], messages=0, asks_again=True)
    assert nodes.barriers == 1, "this client asks again before it believes that"
    assert worked(leader, held=[1], messages=0)["lost"] == [1]
    assert nodes.barriers == 2


def test_a_rejection_that_is_repeated_counts_once(nodes):
    """Its answer was lost; the message must not be handed out to two members at a time."""
    leader = nodes.leader()
    leader.join(JOIN, SPARK)
    (claim,) = worked(leader)["claims"]
    at = sorted(places(nodes.directory, claim))
    said = {"held": [claim["number"]], "failed": [[claim["number"], at[4], 2.0]], "messages": 0}
    worked(leader, **said)
    before = nodes.group().claims
    worked(leader, **said)
    assert nodes.group().claims == before


def test_what_was_done_after_a_rejection_does_not_count_where_the_range_had_to_go_whole(nodes):
    """A full group cannot keep the rest for its holder; calling that agreed repeats messages."""
    leader = nodes.leader()
    leader.join({**JOIN, "silence_s": 3600}, SPARK)
    (claim,) = worked(leader, messages=100)["claims"]
    at, number = sorted(places(nodes.directory, claim)), claim["number"]
    while len(nodes.group().claims) < CLAIMS_MAX:
        (claim,) = worked(leader, "b", messages=1)["claims"]
        place = Position(claim["first"])
        worked(leader, "b", failed=[[claim["number"], place, 3600.0]], messages=0)
    answer = worked(
        leader, held=[number], failed=[[number, at[2], 0.0]], done=[[number, at[4]]], messages=0
    )
    assert answer["lost"] == [number]
    assert nodes.group().claims[-1].first == at[2], "handed out again, with all that follows"


def test_a_leader_that_leads_again_hands_out_no_range_of_a_living_member(nodes, tmp_path):
    """Its member reported to another leader in between; the range went to a second member."""
    first, second = nodes.leader(), nodes.leader()
    first.join(JOIN, SPARK)
    held = worked(first, "a")["claims"][0]
    nodes.term = 2
    for _ in range(10):
        nodes.now_s += 0.5
        assert worked(second, "a", held=[held["number"]], messages=0)["lost"] == []
    nodes.term, nodes.now_s = 3, nodes.now_s + 0.1
    given = worked(first, "b")["claims"][0]
    assert not set(places(tmp_path, held)) & set(places(tmp_path, given))


def test_a_leader_whose_log_is_copied_does_not_say_that_a_group_is_done(tmp_path):
    """Its members ended with messages that none of them had handled."""
    (tmp_path / "out").mkdir()
    leader = Nodes(tmp_path / "out", Position(4096), 10).leader()
    leader.join(JOIN, SPARK)
    with pytest.raises(Refused, match="is being copied") as refused:
        worked(leader, "a")
    assert refused.value.code == "undecided"

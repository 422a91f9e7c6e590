"""One member of a group, without a network: what it reports as handled was handled."""

import asyncio
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from types import SimpleNamespace

import pytest
from logs import MergedLog
from reading_groups import SPARK, Nodes

from rt.client.groups import claim_reading
from rt.client.groups.claim_reading import Bury, Choice, ClaimReading, OnTrouble
from rt.client.groups.claims import Claims
from rt.client.groups.group import DeadLetter, Group
from rt.client.groups.group_subscriber import GroupSubscriber, MemberReading
from rt.client.groups.joining import join
from rt.client.groups.member_claims import HeldClaim, MemberClaims
from rt.client.readers.registered import Registered, RegisteredReader
from rt.errors import CorruptLog, GapError, PeerError
from rt.events import NoMatch
from rt.format.manifest import Archived
from rt.log.notify.watch import Watch
from rt.net.loop.event_loop import EventLoop
from rt.position import START, Position
from rt.subscriber import Subscriber
from tests.replicator_host import eventually

COUNT = 20
PATIENCE_S = 60
NO_CHOICE = Choice.of(None, b"", None)


class Closing(Subscriber):
    """A subscriber whose end is counted."""

    def __init__(self, world, *arguments, **options):
        super().__init__(*arguments, **options)
        self.world = world
        world.opened.set()
        world.may_read.wait(PATIENCE_S)

    def close(self):
        self.world.closed += 1
        super().close()


class World:
    """Nodes with a merged log of `COUNT` messages in four files, and members with a copy."""

    def __init__(self, root):
        self.root = root
        self.log = MergedLog(str(root / "flights" / "out"))
        for number in range(0, COUNT, 5):
            if number == 5:  # a copy that never gets more than the first file
                shutil.copytree(self.log.directory, root / "stalled" / "flights" / "out")
            self.log.merge("jfk", [b"%d" % (number + each) for each in range(5)])
            self.log.roll()
        whole = shutil.copytree(self.log.directory, root / "whole")
        self.nodes = Nodes(whole, self.log.appender.end, COUNT)
        self.leader = self.nodes.leader()
        self.letters = []
        self.failures = []
        self.loop = EventLoop()
        self.closed = 0  # how many readers were closed
        self.opened, self.may_read = threading.Event(), threading.Event()
        self.may_read.set()

    def publish(self, _key, payload):
        """Take a dead letter, or fail."""
        if self.failures:
            raise self.failures.pop()
        self.letters.append(DeadLetter.parse(payload).payload)

    def ask(self, request):
        """Return a node's answer."""
        verb = self.leader.join if request["do"] == "group-join" else self.leader.work
        return verb(request, SPARK)

    def close(self):
        """Hang up: nothing is kept."""

    @contextmanager
    def member(
        self, group, ack="explicit", on_gap="raise", root=None, choice=NO_CHOICE, on_event=None,
        until=None, stalled_s=claim_reading.STALLED_S,
    ):  # fmt: skip
        """Join; the reader raises at gaps, as `rt.client.groups.joining` has it."""
        self.ask({"do": "group-join", "start": "earliest", **group.agreed_on()})
        wanted = MemberReading(
            ack, until is None, 30.0, choice, OnTrouble(on_gap, "raise", on_event)
        )
        watch = self.watch = Watch()
        watch.add(str((root or self.root) / "flights" / "out"))
        subscriber = GroupSubscriber(
            group, Claims(self, group, group.member, self.loop, position=START),
            lambda place: Closing(self, root or self.root, stream="flights", start=place),
            wanted, watch, until=until, publish=self.publish, stalled_s=stalled_s,
        )  # fmt: skip
        with closing(subscriber):
            yield subscriber

    def archive(self, count, reason):
        """Give up the first files, for a reason."""
        files = self.log.appender.manifest.order[:count]
        self.log.appender.archive_all([Archived(file, 1, reason) for file in files])


@pytest.fixture
def world(tmp_path):
    """A world of its own for each test."""
    made = World(tmp_path)
    with made.log:
        yield made
    made.loop.stop()


def taken(messages, count):
    """The next messages, by payload."""
    return {message.payload: message for _, message in zip(range(count), messages, strict=False)}


def group(member, **settings):
    """A group whose claims outlive a test, unless it says so."""
    return Group("etl", member, **{"silence_s": 3600.0, "retry_s": 0.0, **settings})


def test_what_was_handed_out_after_a_rejected_message_comes_again_marked(world):
    """The handler may have worked on it; the end of this member gives nothing back unmarked."""
    with world.member(group("a", silence_s=0.5)) as messages:
        first = taken(messages.messages(PATIENCE_S), 5)
        messages.reject(first[b"2"])
    with world.member(group("b", silence_s=0.5)) as messages:
        again = {}
        while not {b"3", b"4"} <= set(again):
            again |= taken(messages.messages(PATIENCE_S), 1)
            messages.ack()
            world.nodes.now_s += 0.1
    assert [again[each].redelivered for each in (b"3", b"4")] == [1, 1]


def test_a_rejected_message_that_comes_again_is_acknowledged_in_its_new_range(world):
    """With what was handed out before it; else the group would wait for it for ever."""
    with world.member(group("a")) as messages:
        iterator = messages.messages(PATIENCE_S)
        seen = taken(iterator, 5)
        messages.reject(seen[b"2"])
        while not (again := next(iterator)).redelivered:
            pass
        assert again.payload == b"2"
        messages.ack(again, sync=True)
        assert not any(claim.first <= again.position for claim in world.nodes.group().claims)


def test_nothing_that_was_not_handed_out_is_acknowledged_after_an_error(world):
    """A dead letter could not be published; the rest of its range was not read yet."""
    with world.member(group("a", max_deliveries=1, dead_letters="dead")) as messages:
        taken(messages.messages(PATIENCE_S), 1)
        messages.reject()
    world.failures = [OSError("no space left on device") for _ in range(2)]
    with world.member(group("b", max_deliveries=1, dead_letters="dead"), ack="auto") as messages:
        rest, failures = {}, 0
        while len(rest) < COUNT - 1 or not world.letters:
            try:
                rest |= taken(messages.messages(0.5), 1)
            except OSError:
                failures += 1
    assert (failures, world.letters) == (2, [b"0"])
    assert set(rest) == {b"%d" % number for number in range(1, COUNT)}


@pytest.mark.parametrize("reason", ["not copied", "keep 1Gi", "limit"])
@pytest.mark.parametrize("on_gap", ["raise", "skip"])
def test_what_only_this_copy_lacks_is_left_to_other_members(world, reason, on_gap):
    """Whatever the reader does about gaps: others can read it. What the nodes gave up is gone."""
    world.archive(1, reason)
    with world.member(group("a"), ack="auto", on_gap=on_gap) as messages:
        if (reason, on_gap) == ("limit", "skip"):
            assert b"5" in taken(messages.messages(PATIENCE_S), 1)
        else:
            with pytest.raises(GapError, match="start from"):
                taken(messages.messages(PATIENCE_S), 1)
    assert (world.nodes.group().position > 0) == (reason == "limit")


def test_a_member_whose_copy_stalls_leaves_what_it_lacks_to_others(world, caplog):
    """It shows signs of life, so no other member would get its range until `work_s_max` is over."""
    stalled = world.member(group("a"), ack="auto", root=world.root / "stalled", stalled_s=0.2)
    with stalled as behind, world.member(group("b"), ack="auto") as whole:
        seen, found = [], {}

        def read():
            seen.extend(each.payload for each in behind.messages(PATIENCE_S))

        reading = threading.Thread(target=read)
        reading.start()
        assert eventually(lambda: "this member's copy does not grow" in caplog.text)
        deadline = time.monotonic() + PATIENCE_S
        while len(seen) + len(found) < COUNT:  # either of them may get the first ranges
            assert time.monotonic() < deadline, (seen, sorted(found))
            found |= {message.payload: message for message in whole.messages(0.5)}
        behind.stop()
        reading.join(PATIENCE_S)
    assert sorted([*seen, *found], key=int) == [b"%d" % number for number in range(COUNT)]
    assert not any(message.redelivered for message in found.values())


def test_only_dead_letters_are_passed_over_in_a_session_that_is_called_like_theirs(world):
    """A publisher may have that name, too; what it says must not vanish."""
    letter = DeadLetter("other", START, "jfk", 7, b"", 5, "rejected", b"bad").encode()
    world.log.merge("dead-7", [b"mine", letter, b'{"not": "a letter"}'])
    world.log.merge("jfk", [letter])
    world.nodes.grow(world.log.appender.end, COUNT + 4)
    shutil.rmtree(world.nodes.directory)
    shutil.copytree(world.log.directory, world.nodes.directory)
    with world.member(group("a", dead_letters="dead"), ack="auto") as messages:
        found = [each.payload for _, each in zip(range(COUNT + 3), messages, strict=False)]
    assert found[COUNT:] == [b"mine", b'{"not": "a letter"}', letter]


@pytest.mark.parametrize("on_gap", ["raise", "skip"])
def test_a_gap_acknowledges_nothing_that_was_handed_out_before_it(world, on_gap):
    """With explicit acknowledgements the program may still be working on it, and die."""
    with world.member(group("a"), ack="explicit", on_gap=on_gap) as messages:
        first = taken(messages.messages(PATIENCE_S), 5)
        world.archive(2, "limit")
        found, gaps = {}, 0
        while not found:
            try:
                found = taken(messages.messages(PATIENCE_S), 1)
            except GapError:
                gaps += 1
        assert (b"10" in found, gaps > 0) == (True, on_gap == "raise")
        messages.ack(first[b"2"], sync=True)
        at = world.nodes.group().position
        assert first[b"2"].next_position == at
        messages.ack(first[b"4"], sync=True)
        assert world.nodes.group().position >= first[b"4"].next_position
    assert world.nodes.group().position > first[b"4"].next_position, "the gap needs no handler"


def test_damage_ends_a_member_every_time_it_asks(world):
    """To go on with the next range would count the damaged one as handled."""
    path = world.log.appender.manifest.order[0].file_name
    with open(world.root / "flights" / "out" / path, "r+b") as file:
        file.seek(60)
        file.write(bytes([255] * 40))
    with world.member(group("a"), ack="auto") as messages:
        for _ in range(3):
            with pytest.raises(CorruptLog):
                taken(messages.messages(PATIENCE_S), 1)
    assert world.nodes.group().position == 0


def test_a_member_that_ends_in_the_middle_of_a_range_closes_its_reader(world):
    """What it had open was left to the garbage collector, with the member that held it."""
    with world.member(group("a")) as messages:
        assert len(taken(messages.messages(PATIENCE_S), 3)) == 3
        assert not world.closed
    assert world.closed == 1


def test_another_thread_closes_a_member_whose_copy_lags(world):
    """A client's `close` does; its thread then looked at a watch that was closed."""
    looking = threading.Event()

    def read(messages):
        for each in messages.messages(PATIENCE_S):
            if each.payload == b"4":
                looking.set()

    with ThreadPoolExecutor(1) as threads:
        with world.member(group("a"), root=world.root / "stalled") as messages:
            reading = threads.submit(read, messages)
            assert looking.wait(PATIENCE_S)
        assert reading.result(PATIENCE_S) is None
    with pytest.raises(ValueError, match="closed file"):
        world.watch.fileno()


def test_answers_that_cannot_be_read_end_no_member(world, caplog):
    """A number that is none ended the thread that asks, and the member waited for ever."""
    nothing = {"lost": [], "claims": [], "position": "0.0.0", "is_done": False}
    wrong = [
        nothing | each
        for each in (
            {"lost": [1e999]},
            {"lost": 5},
            {"claims": [5]},
            {"position": "x"},
            {"claims": None},
        )
    ]
    ask = world.ask

    def troubled(request):
        return wrong.pop() if wrong and request["do"] == "group-work" else ask(request)

    world.ask = troubled
    with world.member(group("a", silence_s=0.5)) as messages:
        assert len(taken(messages.messages(PATIENCE_S), 3)) == 3
    assert not wrong
    assert "a node's answer cannot be read" in caplog.text


@pytest.mark.parametrize(
    "answer", [{}, {"epoch": 1e999, "position": {}}, {"epoch": 1, "position": []}]
)
def test_whoever_opens_a_cursor_or_joins_a_group_names_the_node_that_answered_so(answer):
    """A KeyError sends the programmer to the wrong end of the connection."""
    closed = []
    nodes = SimpleNamespace(ask=lambda _request: answer, close=lambda: closed.append(1))
    with pytest.raises(PeerError, match="a node's answer cannot be read"):
        RegisteredReader(nodes, Registered("etl"), "", None)
    wanted = SimpleNamespace(ack="auto", follow=True)
    with pytest.raises(PeerError, match="a node's answer cannot be read"):
        join(group("a"), "earliest", wanted, None, (nodes, None))
    assert closed == [1, 1]


@pytest.mark.parametrize(
    ("sessions", "where", "words"),
    [
        (["jfkk"], None, "did you mean 'jfk'?"),
        (None, "key = x", "no message of what this member of group 'g' was handed"),
        (["jfk"], None, ""),
    ],
)
def test_a_member_says_what_was_asked_for_and_matches_nothing(
    world, caplog, sessions, where, words
):
    """A plain subscriber does; a group whose members misspelt a session handled all as nothing."""
    events, choice = [], Choice.of(sessions, b"", where)
    end = world.log.appender.end
    with world.member(
        Group("g", member="a"), choice=choice, on_event=events.append, until=end
    ) as member:
        for message in member:
            member.ack(message)
    assert [type(each) for each in events] == ([NoMatch] if words else [])
    assert words in caplog.text


def test_stop_ends_the_wait_for_nodes_before_what_follows_a_suspect_message(world):
    """With no node there, an iteration that was told to stop went on until close."""
    for number in range(2):  # so that the third member gets a range that was handed out twice
        with world.member(group(f"m{number}", silence_s=0.5)) as messages:
            taken(messages.messages(PATIENCE_S), 5)
        world.nodes.now_s += 1.0
    asked, left = [], []

    def silent(request):
        asked.append(request)
        raise PeerError("no node answers")

    with world.member(group("last", silence_s=0.5)) as messages:
        iterator = messages.messages(PATIENCE_S)
        message = next(iterator)
        assert message.redelivered == 2
        world.ask = silent
        messages.ack(message)
        reading = threading.Thread(target=lambda: left.append(next(iterator, None)))
        reading.start()
        assert eventually(lambda: asked, PATIENCE_S)
        messages.stop()
        reading.join(PATIENCE_S)
        assert left == [None]


def test_a_cancelled_wait_keeps_the_gap_for_the_next_one(world):
    """`asyncio.wait_for` cancels: the gap counted as handled, and its program heard of none."""
    world.archive(1, "limit")

    async def cancelled(messages):
        waiting = asyncio.ensure_future(anext(aiter(messages)))
        assert await asyncio.to_thread(world.opened.wait, PATIENCE_S)
        waiting.cancel()
        world.may_read.set()  # the thread that looks for a message meets the gap
        await asyncio.wait([waiting])
        return waiting.cancelled()

    with world.member(group("a")) as messages:
        world.may_read.clear()
        assert asyncio.run(cancelled(messages))
        with pytest.raises(GapError):
            next(messages.messages(PATIENCE_S))
        assert next(messages.messages(PATIENCE_S)).payload == b"5"


def test_no_message_after_a_gap_is_a_dead_letter_for_the_one_before_it(world):
    """Only the first message of the range was delivered too often, and it is archived."""
    world.archive(1, "limit")
    claims = MemberClaims(group("a"), "a", START, follow=True)
    told = SimpleNamespace(
        is_done=False, progress=lambda claim, place: claims.progress(claim, place, 0.0),
        handled=claims.handled, grown=claims.grown, give_back=claims.give_back,
    )  # fmt: skip
    reading = ClaimReading(
        group("a", dead_letters="dead"), told, NO_CHOICE, OnTrouble("skip", "raise", None),
        is_stopped=lambda: False, has_grown=lambda: False, now_s=lambda: 0.0,
    )  # fmt: skip
    claim = HeldClaim(7, START, world.log.appender.end, 6, True, START, START, START)
    with Subscriber(str(world.root), stream="flights", start=START) as reader:
        steps = list(reading.steps(claim, reader))
    assert steps
    assert not [step for step in steps if isinstance(step, Bury)]


def test_a_range_whose_last_wanted_message_is_rejected_is_finished():
    """Its end was read before; nothing was left to read, so the group waited for it for ever."""
    claims = MemberClaims(group("a"), "a", START, follow=True)
    end, last = Position(4096), Position(1000)
    claim = HeldClaim(7, START, end, 1, False, START, START, START, tail=Position(last + 1))
    claims.reject(claim, last)
    assert (claim.done, claim.handed) == (end, end)

"""Sessions without number are looked at again and again, and no message waits for that."""

import errno
import os

from replicator.push.pace import SessionRounds, SessionSweep
from rt.log.notify.confirmations import Level
from rt.log.notify.shipping import FRESH_S
from tests.archive_cluster import ArchiveCluster

NAMES = [f"s{number}" for number in range(50)]


def looked_at(names):
    """Return what one look at all sessions looks at, and how long it rests meanwhile."""
    seen, rests_s = [], []
    rounds = SessionRounds(lambda: names, seen.append)
    while len(seen) < len(names):
        rests_s.append(rounds.turn())
    assert rests_s.pop() == 1.0, "then it rests for longer"
    return seen, rests_s


def test_a_look_at_all_sessions_rests_now_and_then():
    """It gives the interpreter to others meanwhile."""
    seen, rests_s = looked_at(NAMES)
    assert seen == NAMES
    assert len(rests_s) == 3
    assert sum(rests_s) < 0.5


def test_looking_at_very_many_does_not_take_long_for_its_rests():
    """A reader of the notes calls one stale that was not renewed for ten seconds."""
    names = [str(number) for number in range(100_000)]
    seen, rests_s = looked_at(names)
    assert seen == names
    assert sum(rests_s) < FRESH_S / 2


def test_a_look_without_a_free_descriptor_is_repeated():
    """A pusher runs for months; what it misses once may not leave its disk to fill from then on."""
    seen, answers = [], [OSError(errno.EMFILE, os.strerror(errno.EMFILE)), NAMES[:3]]

    def names():
        if isinstance(answer := answers.pop(0), OSError):
            raise answer
        return answer

    rounds = SessionRounds(names, seen.append)
    assert rounds.turn() == rounds.turn() == 1.0
    assert seen == NAMES[:3]


class Clock:
    """A clock that only a test moves."""

    now_s = 100.0

    def __call__(self):
        return self.now_s


def begun(names, *, urgent, new=()):
    """Return a sweep that was asked for, and the clock that it goes by."""
    clock = Clock()
    sweep = SessionSweep(clock)
    sweep.ask(urgent=urgent)
    sweep.answer()
    sweep.begin(new, names)
    return sweep, clock


def rest_of(sweep, clock):
    """Take the rest of a sweep, with its rests."""
    seen = []
    while (rest_s := sweep.wait_s(1.0)) < 1.0:
        clock.now_s += rest_s
        seen += sweep.some()
    return seen


def test_an_urgent_sweep_takes_new_sessions_first_and_forgets_none():
    """What was left of the last one comes next, or a busy connection would never come to it."""
    sweep, clock = begun(NAMES, urgent=True)
    seen = sweep.some()
    assert seen == NAMES[: len(seen)]
    sweep.ask(urgent=True)
    sweep.begin(["new"], NAMES)
    assert sweep.wait_s(1.0) == 0.0, "a new session does not wait"
    assert sweep.some() == ["new"]
    again = rest_of(sweep, clock)
    assert again[0] == NAMES[len(seen)]
    assert sorted(again) == sorted(NAMES)


def test_a_sweep_that_is_not_urgent_is_ended_before_the_next_begins():
    """It is asked for every second, and may take longer."""
    sweep, clock = begun(NAMES, urgent=False)
    seen = sweep.some()
    sweep.ask(urgent=False)
    sweep.begin([], NAMES)
    assert seen + rest_of(sweep, clock) == NAMES
    sweep.begin([], NAMES)
    assert rest_of(sweep, clock) == NAMES


def test_a_sweep_rests_before_it_goes_on():
    """A connection that is woken by each message must not sweep in each of those turns."""
    sweep, clock = begun(NAMES, urgent=False)
    assert sweep.some()
    assert not sweep.some()
    rest_s = sweep.wait_s(1.0)
    assert 0.0 < rest_s < 1.0
    clock.now_s += rest_s / 2
    assert not sweep.some()
    clock.now_s += rest_s / 2
    assert sweep.some()


def test_what_may_have_been_missed_is_looked_at_at_once():
    """A look that was begun at leisure does not hold it up."""
    sweep, _ = begun(NAMES, urgent=False)
    assert sweep.some()
    assert sweep.wait_s(1.0) > 0.0
    sweep.ask(urgent=True)
    sweep.begin([], NAMES)
    assert sweep.wait_s(1.0) == 0.0
    assert sweep.some()


def test_a_new_session_that_is_announced_is_looked_at_without_a_look_at_all():
    """Each of a thousand that are made one after another would cost a look at all before it."""
    sweep, _ = begun(NAMES, urgent=False)
    assert sweep.some()
    sweep.add("new")
    assert sweep.wait_s(1.0) == 0.0
    assert sweep.some() == ["new"]
    assert sweep.wait_s(1.0) > 0.0


def test_a_session_that_is_gone_is_not_looked_at():
    """What is left of the last sweep may have been refused, or ended, since."""
    sweep, clock = begun(NAMES, urgent=True)
    assert len(sweep.some()) > 1
    sweep.begin([], NAMES[-1:])
    assert rest_of(sweep, clock) == NAMES[-1:]


def test_more_sessions_than_one_turn_looks_at_are_merged_in_whatever_order_they_begin(tmp_path):
    """Those that were there before the pusher, and those that came after it."""
    with ArchiveCluster(tmp_path) as cluster:
        early = [cluster.publisher(f"early{number}") for number in range(40)]
        for publisher in early:
            publisher.publish(b"one")
        cluster.push()
        late = [cluster.publisher(f"late{number}") for number in range(40)]
        for publisher in [*early, *late]:
            publisher.publish(b"two")
        for publisher in [*early, *late]:
            assert publisher.flush(Level.MERGED, 60).merged_at

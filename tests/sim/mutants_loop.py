"""Mistakes in the bookkeeping of an event loop, which only worlds of one loop show."""

from collections.abc import Callable

from replicator.serve.looped_client import LoopedClient
from replicator.wire.outlet import Outlet
from rt.net.loop.deadlines import Deadlines
from rt.net.loop.readiness import Readiness
from rt.net.loop.timer import Timer
from rt.net.loop.turns import LoopTurns
from sequencer.peers.connections import PeerOut
from sequencer.peers.send_queue import SendQueue

from .mutation import Patch, mutant, noticed_by, rewritten

LOOPING: set[str] = set()


def looping(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    """Register a mistake that is sought in worlds of one loop alone."""
    LOOPING.add(make.__name__.replace("_", "-"))
    return mutant(make)


# Deadlines


@looping
def a_deadline_put_off_is_lost() -> list[Patch]:
    """When the entry of a deadline that was moved away comes up, nothing is queued for it."""
    right = "at_s is not None and at_s < self._queued_s.get(name, NEVER_S)"
    return [(Deadlines, *_property(Deadlines, "next_s", right, "False"))]


@looping
def a_deadline_moved_nearer_is_late() -> list[Patch]:
    """One that has an entry keeps it, also if it is due before that."""
    right = "at_s < self._queued_s.get(name, NEVER_S)"
    return [rewritten(Deadlines, "set", right, "name not in self._queued_s")]


@looping
def a_cleared_deadline_is_called() -> list[Patch]:
    """A deadline that was cleared is due all the same."""
    return [rewritten(Deadlines, "clear", "self._at_s.pop(name, None)", "pass")]


@looping
def a_deadline_is_called_early() -> list[Patch]:
    """What is due within 5 ms is called now."""
    right = "while self.next_s <= now_s"
    more = ("self._heap[0][0] > now_s", "self._heap[0][0] > now_s + 0.005")
    return [rewritten(Deadlines, "pop_due", right, "while self.next_s <= now_s + 0.005", *more)]


@looping
def near_and_far_deadlines_pile_up() -> list[Patch]:
    """The heap is never made again, whatever of it is of use."""
    right = "len(self._heap) > 2 * len(self._at_s) + _SPARE_ENTRIES"
    return [rewritten(Deadlines, "_queue", right, "False")]


def _property(owner: type, name: str, right: str, wrong: str) -> tuple[str, property]:
    """Return a property whose getter is rewritten."""
    getter = vars(owner)[name].fget
    holder = type("Holder", (), {name: getter})
    source = rewritten(holder, name, right, wrong)
    return name, source[2] if isinstance(source[2], property) else property(source[2])


# Readiness, and the work of a turn


@looping
def a_turn_serves_all_that_are_ready() -> list[Patch]:
    """However many have something to do, and however long it takes."""
    return [rewritten(Readiness, "turn", "left and clock() > last_s", "False")]


@looping
def who_is_marked_last_is_served_first() -> list[Patch]:
    """Those who always have more are served, and the others wait."""
    return [
        rewritten(Readiness, "turn", "next(iter(self._others))", "next(reversed(self._others))")
    ]


@looping
def nothing_is_urgent() -> list[Patch]:
    """Another node's messages wait for all clients."""
    right, wrong = "is_urgent=party.is_urgent", "is_urgent=False"
    return [rewritten(LoopTurns, name, right, wrong) for name in ("mark", "_turns")]


@looping
def a_turn_serves_all_that_is_due() -> list[Patch]:
    """A thousand connections whose deadlines came in a slow turn are served in the next one."""
    return [rewritten(LoopTurns, "_turn", "self._ready.mark(party)  #", "self._serve(party)  #")]


@looping
def a_turn_does_all_that_was_posted() -> list[Patch]:
    """However much that is."""
    return [rewritten(LoopTurns, "_turn", "self.clock() > last_s", "False")]


@looping
def what_a_call_posts_is_done_at_once() -> list[Patch]:
    """A call that posts itself again keeps the loop in one turn."""
    right, wrong = "for _ in range(len(self._posted)):", "while self._posted:"
    return [rewritten(LoopTurns, "_turn", right, wrong)]


@looping
def it_waits_although_some_are_ready() -> list[Patch]:
    """Those that a turn has left out wait for the next event."""
    right = "self._ready or self._last or self._posted"
    return [rewritten(LoopTurns, "_pause_s", right, "self._last or self._posted")]


@looping
def it_waits_although_duties_have_news() -> list[Patch]:
    """Duties that find more to do are done with the next event."""
    right = "self._ready or self._last or self._posted"
    return [rewritten(LoopTurns, "_pause_s", right, "self._ready or self._posted")]


@looping
def it_waits_for_a_minute_whatever_is_due() -> list[Patch]:
    """A deadline ends no wait."""
    right = "min(_WAIT_S_MAX, max(0.0, self.deadlines.next_s - self.clock()))"
    return [rewritten(LoopTurns, "_pause_s", right, "_WAIT_S_MAX")]


@looping
def forgotten_and_called_in_the_same_turn() -> list[Patch]:
    """A connection that another one has ended has its turn, if it was ready."""
    return [rewritten(LoopTurns, "forget", "self._ready.drop(party)", "pass")]


@looping
def forgotten_and_still_watched() -> list[Patch]:
    """A descriptor that is ignored stays in the kernel's table."""
    return [rewritten(LoopTurns, "ignore", "self._poller.unregister(fd)", "pass")]


@looping
def ignored_and_not_forgotten() -> list[Patch]:
    """A descriptor's number is taken to be watched, when another file has got it."""
    return [rewritten(LoopTurns, "ignore", "self._watched.pop(fd, None)", "self._watched.get(fd)")]


@looping
def an_error_of_one_ends_all() -> list[Patch]:
    """An internal error in a party's turn ends the loop, whatever the party makes of it."""
    return [(LoopTurns, "_serve", staticmethod(lambda party: party.ready()))]


# Posted calls


@looping
def the_bell_is_cleared_before_it_is_heard() -> list[Patch]:
    """A ring between the two is swallowed, and no later one is heard."""
    right = "self._poller.hear()\n                    self._is_rung = False"
    return [rewritten(LoopTurns, "_turns", right, "self._is_rung = False; self._poller.hear()")]


@looping
def calls_are_done_in_the_reverse_order() -> list[Patch]:
    """What was posted last is done first."""
    right = "self._posted.popleft()()\n        if"
    return [rewritten(LoopTurns, "_turn", right, right.replace("popleft", "pop"))]


@looping
def duties_wait_for_what_others_have_posted() -> list[Patch]:
    """A storm of calls comes before another node's vote."""
    wrong = "self.post(lambda: self._last.setdefault(party))"
    return [rewritten(LoopTurns, "mark_last", "self._called.append(party)", wrong)]


@looping
def a_call_after_the_end_is_lost_without_a_word() -> list[Patch]:
    """Its poster waits for it."""
    right = "self._posted.remove(act)\n            return False"
    return [rewritten(LoopTurns, "post", right, "return True")]


@looping
def it_ends_without_what_was_posted() -> list[Patch]:
    """A loop that is stopped does not do what it was given before."""
    right = "not self._is_over or self._posted"
    wrong = "not self._is_over"
    more = ("while self._posted:  # posted by threads", "while False:  # posted by threads")
    return [rewritten(LoopTurns, "_turns", right, wrong, *more)]


# Bounded output


@looping
def the_next_overtakes_what_is_queued() -> list[Patch]:
    """What is sent while something waits for the peer goes before it, if there is room."""
    return [rewritten(Outlet, "post", "if not self._parts:", "if True:")]


@looping
def a_part_is_cut_otherwise_when_there_is_room() -> list[Patch]:
    """TLS is given other bytes than it had no room for."""
    right = "self._sent(self._parts[0])"
    return [rewritten(Outlet, "send", right, "self._sent(self._parts[0][:1_000])")]


@looping
def a_slow_puller_is_sent_more() -> list[Patch]:
    """Nothing waits for a puller to take what is queued for it."""
    right = "if link.has_left:\n        self._rest(_LOOK_S"
    return [rewritten(LoopedClient, "_serve", right, right.replace("link.has_left", "False"))]


@looping
def room_is_not_watched_for() -> list[Patch]:
    """A puller that reads again is sent the rest at the next look, half a second later."""
    return [rewritten(LoopedClient, "_rest", " | WRITABLE * link.has_left", "")]


@looping
def room_is_watched_for_without_end() -> list[Patch]:
    """A node that has taken everything still keeps the loop turning."""
    return [rewritten(PeerOut, "_flush", "if self._is_full and", "if False and")]


@looping
def a_message_without_room_is_dropped() -> list[Patch]:
    """What a node's socket does not take at once is not sent."""
    return [rewritten(PeerOut, "put", "self._record = data", "pass")]


@looping
def a_part_of_a_message_begins_a_connection() -> list[Patch]:
    """The rest of what was being sent goes onto the next connection."""
    right, wrong = 'self._record, self._rest = b"", memoryview(b"")', "pass"
    return [rewritten(PeerOut, "_drop", right, wrong)]


@looping
def any_amount_waits_for_a_node() -> list[Patch]:
    """The oldest messages are not dropped, however many a slow node does not take."""
    return [rewritten(SendQueue, "put", "self._bytes > _QUEUE_BYTES_MAX", "False")]


@looping
@noticed_by(
    "unit/test_loop_parts.py::test_what_a_node_is_sent_next_is_little_beside_what_waits_for_it"
)
def all_that_waits_is_taken_at_once() -> list[Patch]:
    """What is being sent, and what is queued meanwhile, have a bound each."""
    return [rewritten(SendQueue, "pop", " and size < _TAKE_BYTES", "")]


# Timers


@looping
def a_timer_is_called_while_its_work_is_under_way() -> list[Patch]:
    """A cursor's next sign of life overtakes the one before."""
    return [rewritten(Timer, "_turn", "self._is_over or self._aside", "self._is_over")]


@looping
def a_timer_that_is_set_in_its_turn_is_not_called_again() -> list[Patch]:
    """It is noted as set until its turn is over, and that is then forgotten."""
    first, last = "self._is_set = False\n", "if self._is_over or wanted is None:"
    wrong = "self._is_set = False\n    " + last
    return [rewritten(Timer, "_turn", first, "\n", last, wrong)]


@looping
def work_that_got_no_thread_is_done_twice() -> list[Patch]:
    """The pool does it later, though the timer tries again."""
    right = "if self._aside is wanted:\n                wanted.work()"
    return [rewritten(Timer, "_put_aside", right, "wanted.work()")]

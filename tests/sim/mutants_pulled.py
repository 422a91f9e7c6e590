"""Mistakes in copying and reading, which only worlds with readers and mirrors show."""

from collections.abc import Callable

from replicator.pull import mirror
from replicator.pull.end_question import EndQuestion
from replicator.pull.lag_watch import LagWatch
from replicator.pull.local_copy import PulledLog
from replicator.pull.mirror import MirrorFeed
from replicator.wire.rotation import Rotation
from rt.node.agree.latest import LatestRead
from sequencer.reading import LatestReads

from . import pullers
from .mutation import Patch, mutant, rewritten

PULLING: set[str] = set()


def pulling(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    """Register a mistake that is sought in worlds with readers and mirrors alone."""
    PULLING.add(make.__name__.replace("_", "-"))
    return mutant(make)


@pulling
def complete_once_a_node_has_answered() -> list[Patch]:
    """A reader ends as soon as it knows the end, wherever its copy is: a flag, not a position."""
    return [(EndQuestion, "is_reached", lambda self, place: self.end is not None)]


@pulling
def end_answered_without_a_majority() -> list[Patch]:
    """A node that believes it leads answers where the stream ends."""
    return [
        (LatestRead, "is_over", lambda self, view: True),
        (LatestRead, "demand_answered", lambda self, view: None),
    ]


@pulling
def end_answered_by_any_node() -> list[Patch]:
    """A follower answers where the stream ends, as far as it has come."""
    return [
        (LatestRead, "_leader_of", lambda self, view: "this node"),
        (LatestRead, "is_over", lambda self, view: True),
        (LatestRead, "demand_answered", lambda self, view: None),
    ]


@pulling
def end_answered_before_it_is_executed() -> list[Patch]:
    """A confirmed leader answers where the stream ends before it has merged that far itself."""
    right = "index is not None and index <= executed"
    return [rewritten(LatestReads, "is_answered", right, "index is not None")]


@pulling
def mirror_answers_what_it_was_told_before() -> list[Patch]:
    """A mirror answers with an end that it asked for before it was asked."""
    return [
        (mirror, "covers", lambda asked_s, since_s: True),
        (pullers, "covers", lambda asked_s, since_s: True),
    ]


@pulling
def mirror_calls_complete_what_it_has() -> list[Patch]:
    """A mirror calls its pullers' copies complete once they have what it has."""
    return [(MirrorFeed, "is_whole", lambda self: True)]


@pulling
def never_leaves_a_node_that_lags() -> list[Patch]:
    """A reader stays where it is connected."""
    return [(LagWatch, "why_leave", lambda self, now_s: "")]


@pulling
def looks_at_its_own_node_only() -> list[Patch]:
    """A reader asks only the node that it copies from how far the stream has come."""
    right = LagWatch.due

    def due(self: LagWatch[str], now_s: float) -> str | None:
        return None if right(self, now_s) is None else self._current

    return [(LagWatch, "due", due)]


@pulling
def leaves_a_node_for_its_own_lag() -> list[Patch]:
    """A reader leaves an up-to-date node because its own copy lags for a while."""
    right = "max(self._place, START if own is None else own.end)"
    return [rewritten(LagWatch, "_aim", right, "self._place")]


@pulling
def goes_back_to_the_node_that_it_left() -> list[Patch]:
    """A reader first redials the node that it has just left because of its lag."""
    return [
        rewritten(
            Rotation, "next", "if not avoids(node):", "if True:",
            "node = self._left.pop(0)", "node, self._left = self._left[0], []",
        )
    ]  # fmt: skip


@pulling
def puts_off_all_nodes_alike() -> list[Patch]:
    """Without a near mirror a reader puts off every node, and so none of them."""
    return [rewritten(LagWatch, "puts_off", "for each in self._near", "for each in [node]")]


@pulling
def stays_with_a_far_node() -> list[Patch]:
    """A reader does not go back to a mirror that it prefers."""
    return [(LagWatch, "is_nearer", lambda self, node, end, place, now_s: False)]


@pulling
def a_mirror_that_ended_a_file_reports_less_than_a_node() -> list[Patch]:
    """A mirror reports where its bytes end, and not the next file, in which its copy continues."""
    right = "self._grown(self.appender.next_place)"
    return [rewritten(PulledLog, "written", right, "self._grown(end)")]

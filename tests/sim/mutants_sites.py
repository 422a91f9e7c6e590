"""Mistakes with two sites: what clients hand on, and what the new one begins with."""

from collections.abc import Callable

from replicator.push import progress
from rt.net.authority import succession, successions
from rt.net.authority.successions import Greeting, Successions
from rt.node.founding import from_copy

from . import sites
from .mutation import Patch, mutant, rewritten

SITING: set[str] = set()


def siting(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    """Register a mistake that is sought in worlds with two sites."""
    SITING.add(make.__name__.replace("_", "-"))
    return mutant(make)


@siting
def anyone_ends_a_log() -> list[Patch]:
    """A word counts without the signature of the authority."""
    return [(successions, "parse_succession", lambda text, _trusted: succession.said_in(text))]


@siting
def a_node_ignores_that_its_log_has_ended() -> list[Patch]:
    """A node of the old site goes on when it hears of the new one."""
    return [(Successions, "ended", property(lambda _known: None))]


@siting
def a_node_forgets_that_its_log_has_ended() -> list[Patch]:
    """A node of the old site that restarts goes on until a client tells it again."""
    return [(Successions, "_read_kept", lambda _known: None)]


@siting
def connections_outlive_the_news() -> list[Patch]:
    """A client that hears of the new site goes on with its connections to the old one."""
    return [(Greeting, "is_outdated", property(lambda _greeting: False))]


@siting
def confirmations_outlive_the_log() -> list[Patch]:
    """What the old site confirmed counts at the new one, which does not have all of it."""
    return [(owner, "in_next_log", lambda known: known) for owner in (progress, sites)]


@siting
def clients_forget_which_log_continues() -> list[Patch]:
    """A client hands nothing on."""
    return [rewritten(Greeting, "begin", "self._known.texts", "()")]


@siting
def groups_begin_with_the_carried_state_alone() -> list[Patch]:
    """The new site does not read in the log what groups have sent since the state was saved."""
    right = "max([ledger.watermark(session), *numbers])"
    return [rewritten(vars(from_copy)["_Reading"], "_merge", right, "ledger.watermark(session)")]

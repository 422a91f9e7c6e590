"""Worlds: makes the world of a seed, runs it, and returns what was violated."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import count, islice
from pathlib import Path
from random import Random

from . import memo
from .cluster import Cluster
from .full import FullCluster
from .levelled import LevelledCluster
from .loop_world import LoopWorld
from .member_cluster import MemberCluster
from .merge_cluster import MergeCluster
from .mutants import (
    CHANGING,
    FILLING,
    LEVELLING,
    LOOPING,
    MERGING,
    PULLING,
    READING,
    RESTING,
    RESTORING,
    SCRUBBING,
    SEALING,
    SHARING,
    SITING,
    switched_on,
)
from .mutation import OUTDATED, StaleError, stale
from .pulled import PulledCluster
from .reading import ReadingCluster
from .replaced import ReplacedCluster
from .resting import RestingCluster
from .restored import RestoredCluster
from .rotten import RottenCluster
from .sealed import SealedCluster
from .shared import SharedCluster
from .sites import SitesWorld
from .steady import SteadyCluster
from .worn import WornCluster

memo.install()
SEEDS_FILE = Path(__file__).with_name("seeds.txt")
HUNT_WORLDS = 2_000
# `_replace` before Python 3.13, beside errors that no code raises which fits the product
_NOT_OURS = (*[each.__name__ for each in OUTDATED], "ValueError: Got unexpected field names")
_RARE = {  # by seed % 64
    11: "sealed", 15: "full", 19: "reading", 23: "restored", 27: "sites", 31: "worn",
    35: "levelled", 43: "pulled", 47: "resting", 51: "shared", 55: "rotten", 59: "loop",
    63: "replaced",
}  # fmt: skip
_FIRST_TRIED = {  # seeds that notice mistakes which a hunt would hardly find
    "complete-once-a-node-has-answered": 107,  # others take ten times as long to live
    "confirmations-outlive-the-log": 411,
    "deaf-leader-leads-on": 743,
    "end-answered-by-any-node": 107,
    "groups-begin-with-the-carried-state-alone": 2139,
    "lines-synced-again": 102,
    "live-owner-displaced": 322,
    "longer-log-wins": 91,
    "older-announcements-vouch": 31000447,
    "rests-with-a-lagging-follower": 4911,
    "state-taken-over-drops-all-that-waits": 254,
    "voters-consult-their-own-role": 385,
    "what-was-said-counts-as-agreed": 403,
}
WORLDS: dict[str, type[Cluster | SharedCluster | SitesWorld | LoopWorld]] = {
    "members": MemberCluster,
    "merged": MergeCluster,
    "steady": SteadyCluster,
    "restored": RestoredCluster,
    "rotten": RottenCluster,
    "worn": WornCluster,
    "resting": RestingCluster,
    "replaced": ReplacedCluster,
    "full": FullCluster,
    "reading": ReadingCluster,
    "pulled": PulledCluster,
    "shared": SharedCluster,
    "sealed": SealedCluster,
    "sites": SitesWorld,
    "levelled": LevelledCluster,
    "loop": LoopWorld,
    "engine": Cluster,
}


def world(
    seed: int, log: Callable[[str], None] | None = None
) -> Cluster | SharedCluster | SitesWorld | LoopWorld:
    """Return the world of a seed.

    Every fourth has publishers and merged logs, the others only the engine. In every eighth the
    members change, in every 32nd a majority is left alone for long. Every 64th has one of these: a
    minority's merged logs are out of room for long, a node is restored from a backup, rolled files
    rot, all of this together, publishers pause for so long that nodes become idle, a node replaces
    one that publishers use, readers share a group and cursors, readers that follow and that stop
    copy from nodes and mirrors, two streams share the nodes, the cluster is sealed now and then, or
    it is continued at another site while it lives,
    the level of its formats is raised, or an event loop alone is driven by everything that may come
    between two of its calls. In some of those with publishers, messages have headers; in some,
    policies limit how many messages are kept.
    """
    made = WORLDS[kind_of(seed)](seed, log=log)
    if not isinstance(made, MergeCluster) or seed in _as_they_were():
        return made
    if seed % 5 == 3:
        for publisher in made.publishers.values():
            publisher.has_headers = True
    if seed % 3 == 1 and not isinstance(made, LevelledCluster):  # a level allows it or not
        made.counting = Random(f"{seed} messages")
    return made


@cache
def _as_they_were() -> frozenset[int]:
    """Seeds that found something before messages had headers, and policies counted them."""
    return frozenset(kept_seeds())


def seeds_of(kind: str, first: int, number: int) -> Sequence[int]:
    """Return the first seeds of a kind of `WORLDS`, or of "all"."""
    if kind == "all":
        return range(first, first + number)
    return list(islice((seed for seed in count(first) if kind_of(seed) == kind), number))


def kind_of(seed: int) -> str:
    """Return the kind of a seed's world, a key of `WORLDS`."""
    if seed % 8 == 1:
        return "members"
    if seed % 32 == 7:
        return "steady"
    return _RARE.get(seed % 64, "merged" if seed % 4 == 2 else "engine")


def replay_command(seed: int, mutant: str = "") -> str:
    """Return the command that replays a run."""
    return f"python -m tests.sim --seed {seed}" + (f" --mutant {mutant}" if mutant else "")


def live(seed: int, mutant: str = "") -> tuple[str, str, int]:
    """Run a seed; return its trace's hash, what was violated or "", and its number of events."""
    with switched_on(mutant):
        cluster = None
        try:
            cluster = world(seed)
            return cluster.run(), "", cluster.events
        except Exception as error:  # noqa: BLE001 - a mutant may break anything
            words = f"{type(error).__name__}: {error}"
            return "", words, cluster.events if cluster is not None else 0


@cache
def violated(seed: int) -> str:
    """Return what the world of a seed violates; each lives once in a process, for all who ask."""
    return live(seed)[1]


def hunt(mutant: str, worlds: int = HUNT_WORLDS) -> tuple[int, str] | None:
    """Return the first seed that notices a mistake, and what it noticed; None if none does.

    Mistakes that only one kind of world can show are sought only there, after the seed that is
    known to notice them, if there is one.

    Raises:
        StaleError: the mistake's own code fails, or the seed notices something without it.
    """
    kinds = {
        "reading": READING,
        "resting": RESTING,
        "merged": MERGING,
        "members": CHANGING,
        "restored": RESTORING,
        "rotten": SCRUBBING,
        "full": FILLING,
        "pulled": PULLING,
        "shared": SHARING,
        "sealed": SEALING,
        "sites": SITING,
        "levelled": LEVELLING,
        "loop": LOOPING,
    }
    kind = next((kind for kind, mutants in kinds.items() if mutant in mutants), "all")
    known = (_FIRST_TRIED[mutant],) if mutant in _FIRST_TRIED else ()
    for seed in (*known, *seeds_of(kind, 0, worlds)):
        _, violation, _ = live(seed, mutant)
        if stale or violation.startswith(_NOT_OURS):
            raise StaleError(f"{mutant} no longer fits the code: {[*stale[:1], violation]}")
        if violation and (own := violated(seed)):
            raise StaleError(f"seed {seed} fails without {mutant}: {own}")
        if violation:
            return seed, violation
    return None


def kept_seeds() -> list[int]:
    """Return the seeds that once found something."""
    lines = SEEDS_FILE.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


def first_kept_seeds() -> list[int]:
    """Return the first of the kept seeds of each kind of world."""
    first: dict[str, int] = {}
    for seed in kept_seeds():
        first.setdefault(kind_of(seed), seed)
    return list(first.values())

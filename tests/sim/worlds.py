"""Worlds: a seed makes one, and living through it says what was violated."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import count, islice
from pathlib import Path

from . import memo
from .cluster import Cluster
from .full import FullCluster
from .member_cluster import MemberCluster
from .merge_cluster import MergeCluster
from .mutants import (
    CHANGING,
    FILLING,
    MERGING,
    PULLING,
    READING,
    RESTING,
    RESTORING,
    SCRUBBING,
    switched_on,
)
from .pulled import PulledCluster
from .reading import ReadingCluster
from .replaced import ReplacedCluster
from .resting import RestingCluster
from .restored import RestoredCluster
from .rotten import RottenCluster
from .steady import SteadyCluster
from .worn import WornCluster

memo.install()
SEEDS_FILE = Path(__file__).with_name("seeds.txt")
HUNT_WORLDS = 2_000
_NOT_OURS = (  # raised by a mistake that no longer fits; the last is `_replace` before Python 3.13
    "TypeError", "AttributeError", "NameError", "ValueError: Got unexpected field names",
)  # fmt: skip
_RARE = {  # by seed % 64
    15: "full", 19: "reading", 23: "restored", 31: "worn", 43: "pulled", 47: "resting",
    55: "rotten", 63: "replaced",
}  # fmt: skip
_FIRST_TRIED = {  # seeds that notice what a hunt would otherwise look for in vain
    "next-copy-compared-with-the-last-log": 20578,
    "next-copy-removed-by-the-last-owner": 20578,
}
WORLDS: dict[str, type[Cluster]] = {
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
    "engine": Cluster,
}


def world(seed: int, log: Callable[[str], None] | None = None) -> Cluster:
    """The world of a seed.

    Every fourth has publishers and merged logs, the others have the engine only; in every eighth
    the members change, in every 32nd a majority is left alone for long, and in every 64th the
    merged logs of a minority have no room for long, or a node is restored from a backup, or rolled
    files rot, or all of this comes together, or publishers pause for so long that nodes rest, or
    another node takes the place of one that publishers use, or readers share a group and cursors,
    or readers that follow and that stop copy from nodes and from mirrors. In some of those with
    publishers messages have headers.
    """
    made = WORLDS[_kind(seed)](seed, log=log)
    if isinstance(made, MergeCluster) and seed % 5 == 3 and seed not in _without_headers():
        for publisher in made.publishers.values():
            publisher.has_headers = True
    return made


@cache
def _without_headers() -> frozenset[int]:
    """Seeds that found something when no message had any: what they found has to stay found."""
    return frozenset({*kept_seeds(), *_FIRST_TRIED.values()})


def seeds_of(kind: str, first: int, number: int) -> Sequence[int]:
    """The first so many seeds of a kind of `WORLDS`, or of "all"."""
    if kind == "all":
        return range(first, first + number)
    return list(islice((seed for seed in count(first) if _kind(seed) == kind), number))


def _kind(seed: int) -> str:
    if seed % 8 == 1:
        return "members"
    if seed % 32 == 7:
        return "steady"
    return _RARE.get(seed % 64, "merged" if seed % 4 == 2 else "engine")


def replay_command(seed: int, mutant: str = "") -> str:
    """What to type to see a run again."""
    return f"python -m tests.sim --seed {seed}" + (f" --mutant {mutant}" if mutant else "")


def live(seed: int, mutant: str = "") -> tuple[str, str, int]:
    """Live through a seed: the hash of its trace, what was violated or "", and its events."""
    with switched_on(mutant):
        cluster = None
        try:
            cluster = world(seed)
            return cluster.run(), "", cluster.events
        except Exception as error:  # noqa: BLE001 - a mutant may break anything
            words = f"{type(error).__name__}: {error}"
            return "", words, cluster.events if cluster is not None else 0


def hunt(mutant: str, worlds: int = HUNT_WORLDS) -> tuple[int, str] | None:
    """The first seed that notices a mistake, and what it noticed; None if none does.

    Mistakes that only worlds of one kind can see are sought in these alone, after the seed that
    is known to notice them, if there is one.
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
    }
    kind = next((kind for kind, mutants in kinds.items() if mutant in mutants), "all")
    known = (_FIRST_TRIED[mutant],) if mutant in _FIRST_TRIED else ()
    for seed in (*known, *seeds_of(kind, 0, worlds)):
        _, violation, _ = live(seed, mutant)
        if violation.startswith(_NOT_OURS):
            raise AssertionError(f"{mutant} no longer fits the code: {violation}")
        if violation:
            return seed, violation
    return None


def kept_seeds() -> list[int]:
    """Seeds that found something once."""
    lines = SEEDS_FILE.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]

"""Worlds: a seed makes one, and living through it says what was violated."""

from collections.abc import Callable, Sequence
from pathlib import Path

from .cluster import Cluster
from .member_cluster import MemberCluster
from .merge_cluster import MergeCluster
from .mutants import CHANGING, MERGING, switched_on

SEEDS_FILE = Path(__file__).with_name("seeds.txt")
HUNT_WORLDS = 2_000
WORLDS, MERGED_WORLD = 4, 2
EVERY_MEMBERS, MEMBERS_WORLD = 8, 1


def world(seed: int, log: Callable[[str], None] | None = None) -> Cluster:
    """The world of a seed.

    Every fourth has publishers and merged logs, the others have the engine only; in every eighth
    the members change.
    """
    worlds = {"members": MemberCluster, "merged": MergeCluster, "engine": Cluster}
    return worlds[_kind(seed)](seed, log=log)


def seeds_of(kind: str, first: int, count: int) -> Sequence[int]:
    """The first so many seeds of this kind: "merged", "members", "engine", or "all"."""
    if kind == "all":
        return range(first, first + count)
    found = range(first, first + (EVERY_MEMBERS + 1) * (count + EVERY_MEMBERS))
    return [seed for seed in found if _kind(seed) == kind][:count]


def _kind(seed: int) -> str:
    if seed % EVERY_MEMBERS == MEMBERS_WORLD:
        return "members"
    return "merged" if seed % WORLDS == MERGED_WORLD else "engine"


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

    Mistakes that only worlds of one kind can see are sought in these alone.
    """
    kind = "merged" if mutant in MERGING else "members" if mutant in CHANGING else "all"
    for seed in seeds_of(kind, 0, worlds):
        _, violation, _ = live(seed, mutant)
        if violation:
            return seed, violation
    return None


def kept_seeds() -> list[int]:
    """Seeds that found something once."""
    lines = SEEDS_FILE.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]

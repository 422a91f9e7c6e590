"""Replay a seed, run many, or hunt the mutants: `python -m tests.sim --help`."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .cluster import Cluster
from .merge_cluster import MergeCluster
from .mutants import MERGING, MUTANTS, switched_on

SEEDS_FILE = Path(__file__).with_name("seeds.txt")
HUNT_SEEDS = 2_000
WORLDS, MERGED_WORLD = 4, 2


def world(seed: int, log: Callable[[str], None] | None = None) -> Cluster:
    """The world of a seed: every fourth has publishers and merged logs, others the engine only."""
    return MergeCluster(seed, log=log) if seed % WORLDS == MERGED_WORLD else Cluster(seed, log=log)


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


def hunt(mutant: str, seeds: int = HUNT_SEEDS) -> tuple[int, str] | None:
    """The first seed that notices a mistake, and what it noticed; None if none does."""
    first, step = (MERGED_WORLD, WORLDS) if mutant in MERGING else (0, 1)
    for seed in range(first, seeds, step):
        _, violation, _ = live(seed, mutant)
        if violation:
            return seed, violation
    return None


def kept_seeds() -> list[int]:
    """Seeds that found something once."""
    lines = SEEDS_FILE.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


def _show(seed: int, mutant: str) -> int:
    with switched_on(mutant):
        cluster = world(seed, log=print)
        print(cluster.run())
    return 0


def _many(first: int, count: int, mutant: str) -> int:
    begin, events = time.perf_counter(), 0
    for seed in range(first, first + count):
        _, violation, lived = live(seed, mutant)
        events += lived
        if violation:
            print(f"seed {seed}: {violation}\n  {replay_command(seed, mutant)}")
            return 1
    took = time.perf_counter() - begin
    print(f"{count} seeds, {events} events, {took:.1f} s, no violation")
    return 0


def _hunt_all(mutants: list[str]) -> int:
    alive = 0
    for mutant in mutants:
        begin = time.perf_counter()
        found = hunt(mutant)
        took = time.perf_counter() - begin
        if found is None:
            alive += 1
            print(f"{mutant:34} ALIVE after {HUNT_SEEDS} seeds, {took:.1f} s", flush=True)
        else:
            print(f"{mutant:34} seed {found[0]:5} {took:5.1f} s  {found[1][:90]}", flush=True)
    print(f"{len(mutants) - alive} of {len(mutants)} mutants killed")
    return 1 if alive else 0


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="show this run, event by event")
    parser.add_argument("--first", type=int, default=0, help="the first of --seeds")
    parser.add_argument("--seeds", type=int, default=200, help="how many to run quietly")
    parser.add_argument("--mutant", default="", choices=["", *MUTANTS], help="make this mistake")
    parser.add_argument("--hunt", nargs="*", help="find a seed against these mutants, or all")
    chosen = parser.parse_args()
    if chosen.hunt is not None:
        return _hunt_all(chosen.hunt or list(MUTANTS))
    if chosen.seed is not None:
        return _show(chosen.seed, chosen.mutant)
    return _many(chosen.first, chosen.seeds, chosen.mutant)


if __name__ == "__main__":
    sys.exit(main())

"""Replay a seed, sweep many, or hunt the mutants: `python -m tests.sim --help`."""

import argparse
import logging
import os
import sys
import time

from .mutants import MUTANTS, switched_on
from .mutation import TESTED, StaleError
from .noticing import is_noticed
from .sweep import sweep
from .worlds import HUNT_WORLDS, WORLDS, hunt, seeds_of, world


def _show(seed: int, mutant: str) -> int:
    with switched_on(mutant):
        cluster = world(seed, log=print)
        print(cluster.run())
    return 0


def _hunt_all(mutants: list[str]) -> int:
    logging.disable()  # nodes would log the damage done to them
    killed = 0
    for mutant in mutants:
        begin = time.perf_counter()
        try:
            is_killed, words = _hunted(mutant)
        except StaleError as error:
            is_killed, words = False, f"STALE: {error}"
        killed += is_killed
        print(f"{mutant:34} {time.perf_counter() - begin:5.1f} s  {words}", flush=True)
    print(f"{killed} of {len(mutants)} mutants killed")
    return 0 if killed == len(mutants) else 1


def _hunted(mutant: str) -> tuple[bool, str]:
    """Return whether something notices a mistake, and what."""
    if mutant in TESTED:
        is_killed = is_noticed(mutant)
        return is_killed, f"{'killed' if is_killed else 'ALIVE'} by {TESTED[mutant]}"
    found = hunt(mutant)
    if found is None:
        return False, f"ALIVE after {HUNT_WORLDS} worlds"
    return True, f"seed {found[0]:5}  {found[1][:90]}"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="show this run, event by event")
    parser.add_argument("--first", type=int, default=0, help="the first of --seeds")
    parser.add_argument("--seeds", type=int, default=200, help="how many to run quietly")
    parser.add_argument(
        "--kind", choices=["all", *WORLDS], default="all",
        help="worlds with merged logs, with members that change, with few and long faults, with "
        "a node that is restored, with files that rot, with all of these, with nodes that rest, "
        "with none, with a member that is replaced, with readers and mirrors, with two sites, of "
        "one event loop, or all kinds",
    )  # fmt: skip
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="how many at once")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this")
    parser.add_argument(
        "--mutant", metavar="NAME", default="", choices=["", *MUTANTS], help="make this mistake"
    )
    parser.add_argument(
        "--hunt",
        nargs="*",
        metavar="NAME",
        choices=[*MUTANTS],
        help="find a seed against these mutants, or all",
    )
    chosen = parser.parse_args()
    if chosen.hunt is not None:
        return _hunt_all(chosen.hunt or list(MUTANTS))
    if chosen.seed is not None:
        return _show(chosen.seed, chosen.mutant)
    swept = sweep(
        seeds_of(chosen.kind, chosen.first, chosen.seeds), chosen.processes,
        mutant=chosen.mutant, seconds=chosen.seconds, progress=True,
    )  # fmt: skip
    print(swept)
    return 1 if swept.failed else 0


if __name__ == "__main__":
    sys.exit(main())

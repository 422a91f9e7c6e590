"""Engine, journal and whole nodes run in simulated worlds, which must notice known mistakes."""

import inspect
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from .mutants import MUTANTS
from .mutation import TESTED, Patch, StaleError
from .noticing import is_noticed
from .outsider import has_outsider
from .sweep import sweep
from .wire import Wire
from .worlds import (
    WORLDS,
    first_kept_seeds,
    hunt,
    kept_seeds,
    kind_of,
    live,
    replay_command,
    violated,
    world,
)

QUICK_SEEDS = 64  # the remainder decides the kind: each kind once, and the most usual ones often
# Kinds of which other tests here and in test_pulled.py, test_sites.py and test_loop.py run worlds.
TESTED_BY_NAME = {
    "steady": [39, 231, 743], "restored": [23, 215, 279], "rotten": [247], "full": [207],
    "worn": [223, 415], "replaced": [127, 255, 959], "shared": [51], "pulled": [171],
    "sites": [91, 219], "loop": [59],
}  # fmt: skip
QUICK = [seed for seed in range(QUICK_SEEDS) if kind_of(seed) not in TESTED_BY_NAME]
SHARES = 10  # of a long list of worlds, for workers side by side
FAULT_SEEDS = 2_000
OUTSIDERS = [0, 6, 9, 17, 19]
ROOT = Path(__file__).parents[2]
POSITIONAL = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
# Noticed within a handful of seeds, so that every run of the tests proves that the checkers work.
QUICKEST = [
    "half-is-a-majority",
    "speaks-before-the-sync",
    "log-not-synced",
    "failed-sync-forgiven",
    "slices-merged-on-any-state",
    "reads-without-asking",
    "any-append-cuts-the-log",
    "plans-what-it-holds-alone",
    "executes-without-inputs",
    "holds-before-the-sync",
    "snapshot-before-the-merged-log-is-synced",
]


def demand_no_violation(seeds: list[int]) -> None:
    """Run these seeds; a failing one says how to replay it."""
    for seed in seeds:
        violation = violated(seed)
        assert not violation, f"{violation}\nreplay: {replay_command(seed)}"


@pytest.mark.parametrize("share", range(SHARES))
def test_worlds_of_every_kind_break_no_promise(share: int) -> None:
    """A quick part of the long run, on every save."""
    demand_no_violation(QUICK[share::SHARES])


def test_the_quick_part_has_worlds_of_every_kind() -> None:
    """A kind that only the long run has could break, and no save would show it."""
    assert {*map(kind_of, QUICK), *TESTED_BY_NAME} == set(WORLDS)
    for kind, seeds in TESTED_BY_NAME.items():
        assert set(map(kind_of, seeds)) == {kind}


@pytest.mark.parametrize("seed", first_kept_seeds())
def test_a_seed_of_each_kind_that_once_failed_fails_no_more(seed: int) -> None:
    """`make faults` runs all of them; what each one found has a small test of its own as well."""
    demand_no_violation([seed])


@pytest.mark.faults
@pytest.mark.parametrize("share", range(SHARES))
def test_seeds_that_once_failed_fail_no_more(share: int) -> None:
    """A mistake that was found once is not made again."""
    demand_no_violation(kept_seeds()[share::SHARES])


@pytest.mark.parametrize("mutant", QUICKEST)
def test_an_obvious_mistake_is_noticed_at_once(mutant: str) -> None:
    """Checkers that notice nothing would prove nothing."""
    assert hunt(mutant, 60), f"{mutant} lives"


def test_a_majority_that_can_talk_makes_progress_while_others_are_cut_off() -> None:
    """A leader that hears no one, and is still heard, must not keep the others from electing."""
    demand_no_violation(TESTED_BY_NAME["steady"])
    assert "decided nothing" in live(743, "deaf-leader-leads-on")[1]


def test_a_node_restored_from_a_backup_is_recognized_before_it_says_anything() -> None:
    """An older copy has forgotten votes and entries that the others count on."""
    demand_no_violation(TESTED_BY_NAME["restored"])
    assert "is an older copy" in live(215, "older-copies-speak")[1]
    assert "is an older copy" in live(279, "start-needs-no-confirmation")[1]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_known_mistake_takes_the_arguments_of_what_it_replaces(mutant: str) -> None:
    """A mistake that only raises TypeError is noticed by every world, and proves nothing."""
    for owner, name, value in MUTANTS[mutant]():
        if isinstance(value, property):  # perhaps in the place of an instance's own attribute
            continue
        right = getattr(owner, name)
        if callable(right) and not isinstance(right, type):
            arguments = inspect.signature(right).parameters.values()
            positional = [None for each in arguments if each.kind in POSITIONAL]
            named = dict.fromkeys(each.name for each in arguments if each.kind is each.KEYWORD_ONLY)
            assert inspect.signature(value).bind(*positional, **named)


def test_rot_in_rolled_files_is_repaired_and_does_not_spread() -> None:
    """On a minority, with crashes, full disks and partitions; the copies for repair may rot too."""
    demand_no_violation(TESTED_BY_NAME["rotten"])
    assert "has other bytes" in live(247, "repaired-without-check")[1]


def test_a_majority_with_room_merges_on_though_a_leader_is_full() -> None:
    """The stream once stopped until somebody freed the leader's disk."""
    demand_no_violation(TESTED_BY_NAME["full"])
    assert "merge nothing of" in live(207, "full-leader-leads-on")[1]


def test_rot_a_newcomer_and_restored_directories_and_publishers_together_lose_nothing() -> None:
    """Each fault alone was survived; a stream that runs for years meets all of them."""
    demand_no_violation(TESTED_BY_NAME["worn"])


def test_a_member_that_is_replaced_under_publishers_loses_nothing() -> None:
    """A founder leaves, before or after another node has joined; of seven, before."""
    demand_no_violation(TESTED_BY_NAME["replaced"])


def test_two_streams_on_the_same_nodes_keep_apart() -> None:
    """They have sessions of the same names; mixed up, their messages would be lost or doubled."""
    demand_no_violation(TESTED_BY_NAME["shared"])
    noticed = live(51, "a-change-of-the-other-stream-is-carried-out")[1]
    assert "was taken for one of" in noticed


def test_a_mistake_written_for_older_code_is_stale_and_not_noticed() -> None:
    """An error of the mistake's own code would end any world, and shows nothing."""

    def outdated() -> list[Patch]:
        return [(Wire, "heal", lambda self: self.gone_since)]

    def outdated_and_caught() -> list[Patch]:
        def heal(self: Any) -> None:
            with suppress(AttributeError):
                self.outdated()

        return [(Wire, "heal", heal), (Wire, "outdated", lambda self: self.gone_since)]

    for made in (outdated, outdated_and_caught):
        name = made.__name__
        MUTANTS[name] = made
        try:
            with pytest.raises(StaleError, match="gone_since"):
                hunt(name, 40)
        finally:
            del MUTANTS[name]


def test_an_outsider_with_a_good_certificate_changes_nothing() -> None:
    """Removed nodes, nodes of other clusters and learners once caused forks by a single message."""
    demand_no_violation(OUTSIDERS)
    assert all(map(has_outsider, OUTSIDERS))
    assert live(9, "engine-takes-append-from-a-learner")[1]
    assert live(17, "removed-node-still-heard")[1]
    assert "n9, which no log lists" in live(6, "hear-does-not-ask-for-membership")[1]
    assert "PeerError" in live(19, "entry-that-cannot-be-decoded-ends-the-node")[1]


@pytest.mark.faults
def test_two_thousand_worlds_break_no_promise() -> None:
    """Loss, repetition, partitions, crashes, rot and wiped disks: nothing acknowledged is lost."""
    swept = sweep(range(QUICK_SEEDS, FAULT_SEEDS), os.cpu_count() or 1)
    print(swept)
    assert not swept.failed


@pytest.mark.faults
@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_known_mistake_is_noticed(mutant: str) -> None:
    """Some seed must find each mistake that other libraries made, or that we could make."""
    is_found = is_noticed(mutant) if mutant in TESTED else hunt(mutant)
    assert is_found, f"{mutant} lives; a world or a test that would kill it is missing"


@pytest.mark.parametrize("mutant", TESTED)
def test_a_test_named_for_a_mistake_exists(mutant: str) -> None:
    """A test that was renamed notices nothing."""
    path, _, name = TESTED[mutant].partition("::")
    assert f"def {name}(" in (ROOT / "tests" / path).read_text()


def test_a_seed_is_the_same_world_whatever_the_hash_seed() -> None:
    """A failure that cannot be replayed is a rumour."""
    code = "from tests.sim.worlds import live; print(*[live(seed)[0] for seed in (3, 8, 10, 47)])"
    traces = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert traces[0] == traces[1]
    assert len(set(traces[0].split())) == 4


def test_the_same_seed_twice_is_the_same_world() -> None:
    """A run leaves no state behind, and observing it changes nothing."""
    for seed in (2, 35):  # merged logs, and a node of levels
        lines: list[str] = []
        assert live(seed) == live(seed)
        assert world(seed, log=lines.append).run() == live(seed)[0]
        assert lines

"""Groups and cursors while members, readers and nodes die and pause; judged by histories."""

import os
from pathlib import Path

import pytest

from .leader_kills import LeaderKills
from .reader_history import Fact, demand_cursor, demand_group
from .reader_storm import MEMBERS, READERS, ReaderStorm

SECONDS = os.environ.get("STORM_S")
ROUNDS = int(os.environ.get("STORM_ROUNDS", "3"))


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm_leaves_nothing_unhandled_and_every_repeat_marked(
    tmp_path: Path, seed: int
) -> None:
    """Programs that share work, or take over from each other, rely on nothing else."""
    storm = ReaderStorm(tmp_path, seed)
    try:
        storm.rage(float(SECONDS or 30))
        count = storm.settle()
        demand_group(storm.history(MEMBERS), count)
        epochs = demand_cursor(storm.history(READERS), count)
        print(f"{count} messages, {epochs} epochs, {dict(storm.done)}")
    finally:
        storm.close()


@pytest.mark.faults
@pytest.mark.process
def test_no_member_ends_early_and_no_holder_is_fenced_when_leaders_are_killed(
    tmp_path: Path,
) -> None:
    """A new leader that has not executed its log called groups unknown, and cursors taken."""
    kills = LeaderKills(tmp_path, int(os.environ.get("STORM_SEED", "1")))
    try:
        for number in range(ROUNDS):
            kills.round(number)
            kills.forget(number)
            print(f"round {number}: {dict(kills.done)}, {kills.unsure} unsure, {kills.wrong}")
        assert not kills.wrong
    finally:
        kills.close()


HANDED = [Fact("a", "handed", number, 0) for number in range(3)]
READ = [Fact("a", "opened", 0, 1), *(Fact("a", "handed", number, 1) for number in range(3))]


@pytest.mark.parametrize("wrong", [HANDED[1:], [*HANDED, Fact("b", "handed", 1, 0)]])
def test_the_judge_of_groups_finds_what_is_lost_or_not_marked(wrong: list[Fact]) -> None:
    """A judge that passes everything would make the storm a decoration."""
    demand_group([*HANDED, Fact("b", "handed", 1, 1)], 3)
    with pytest.raises(AssertionError):
        demand_group(wrong, 3)


@pytest.mark.parametrize(
    "more",
    [
        [Fact("a", "acked", 1, 1), Fact("b", "opened", 1, 2), Fact("b", "handed", 1, 2)],
        [Fact("b", "opened", 4, 2), Fact("b", "handed", 4, 2)],
        [Fact("b", "opened", 2, 1)],
        [Fact("b", "opened", 1, 2), Fact("b", "handed", 1, 2), Fact("b", "handed", 3, 2)],
    ],
    ids=["acknowledged twice", "skipped", "one epoch", "a hole"],
)
def test_the_judge_of_cursors_finds_wrong_takeovers(more: list[Fact]) -> None:
    """As above."""
    good = [Fact("a", "acked", 1, 1), Fact("b", "opened", 2, 2), Fact("b", "handed", 2, 2)]
    assert demand_cursor([*READ, *good], 3) == 2
    with pytest.raises(AssertionError):
        demand_cursor([*READ, *more], 3)

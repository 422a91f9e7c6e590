"""Histories of readers: checks what was delivered, acknowledged and taken over."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Fact(NamedTuple):
    """One line of a reader's history."""

    who: str
    what: str  # handed, acked or opened
    # the message's number; for `opened`, the number of the first message that was delivered
    number: int
    mark: int  # in a group, how often it was delivered before; with a cursor, the epoch


def demand_group(facts: Iterable[Fact], count: int) -> None:
    """Check that each message was delivered, and at most once without a redelivery mark.

    Raises:
        AssertionError: one was not delivered, or twice.
    """
    handed = _handed(facts, count)
    unmarked = Counter(each.number for each in handed if not each.mark)
    twice = [number for number, times in unmarked.items() if times > 1]
    if twice:
        who = [each for each in handed if each.number == twice[0]]
        raise AssertionError(f"{len(twice)} repeats are not marked: {who}")


def demand_cursor(facts: Sequence[Fact], count: int) -> int:
    """Check that each epoch begins right after what older ones acknowledged.

    Returns:
        How many epochs there were.

    Raises:
        AssertionError: an epoch does not, or an older one acknowledged more afterwards.
    """
    handed = _handed(facts, count)
    opened = [each for each in facts if each.what == "opened"]
    if len({each.mark for each in opened}) < len(opened):
        raise AssertionError(f"an epoch was given twice: {opened}")
    for new in opened:
        acked = [each for each in facts if each.what == "acked" and each.mark < new.mark]
        before = [each.number for each in handed if each.mark < new.mark]
        if any(new.number <= each.number for each in acked):
            raise AssertionError(f"{new} repeats what was acknowledged: {acked[-3:]}")
        if new.number > max(before, default=-1) + 1:
            raise AssertionError(f"{new} begins after what was handed out: {before[-3:]}")
        run = [each.number for each in handed if each.mark == new.mark]
        if run != list(range(new.number, new.number + len(run))):
            raise AssertionError(f"{new} was handed {run[:9]}...")
    return len(opened)


def _handed(facts: Iterable[Fact], count: int) -> list[Fact]:
    handed = [each for each in facts if each.what == "handed"]
    missing = sorted(set(range(count)) - {each.number for each in handed})
    if missing:
        raise AssertionError(f"{len(missing)} messages were never handed out: {missing[:9]}")
    return handed

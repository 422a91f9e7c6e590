"""ClaimsHeard: when a leader last heard from the holder of each claim, and from each member."""

import math
import time
from collections.abc import Callable
from typing import Final

from rt.node.notes.reading_group import ReadingGroup

_MEMBERS_MAX: Final = 256  # remembered per group
_MEMBER_SILENCES: Final = 4  # an idle member asks three times per `silence_s`


class ClaimsHeard:
    """ClaimsHeard: when the leader last heard from each group's members and claims' holders.

    The times are in the leader's memory only, so a new leader first waits for new signs of life.

    Threads: any thread may call `hear`, `member` and `members`; one thread at a time calls the
    other methods. Each call changes or copies a dictionary in one step, and no dictionary is
    replaced.
    """

    def __init__(self, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._steady_s = steady_s
        self._claims: dict[str, dict[int, float]] = {}  # time by group and claim number
        self._members: dict[str, dict[str, float]] = {}
        self._term = -1  # in which this was heard

    def begin_term(self, term: int) -> None:
        """Forget what was heard in an earlier term: holders may have reported elsewhere since."""
        if term != self._term:
            self._term = term
            self._claims.clear()

    def hear(self, group: str, number: int) -> None:
        """Record a sign of life from a claim's holder."""
        self._claims.setdefault(group, {})[number] = self._steady_s()

    def free(self, group: str, number: int, delay_s: float) -> None:
        """Record that a claim has no holder, and may be handed out after `delay_s` seconds."""
        free_s = -math.inf if not delay_s else self._steady_s() + delay_s
        self._claims.setdefault(group, {})[number] = _Free(free_s)

    def is_free(self, group: ReadingGroup, number: int) -> bool:
        """Whether a claim may be handed out again."""
        now_s = self._steady_s()
        heard_s = self._claims.setdefault(group.name, {}).setdefault(number, now_s)
        if isinstance(heard_s, _Free):
            return now_s >= heard_s
        return now_s - heard_s >= group.silence_s

    def keep(self, group: str, numbers: set[int]) -> None:
        """Forget all claims of a group except those with these numbers."""
        known = self._claims.get(group, {})
        for each in known.keys() - numbers:
            known.pop(each, None)

    def forget(self, group: str) -> None:
        """Forget a group that was removed."""
        self._claims.pop(group, None)
        self._members.pop(group, None)

    def member(self, group: str, name: str) -> None:
        """Record a sign of life from a member."""
        members = self._members.setdefault(group, {})
        members[name] = self._steady_s()
        if len(members) > _MEMBERS_MAX:
            known = members.copy()
            members.pop(min(known, key=known.__getitem__), None)

    def members(self, group: str, silence_s: float) -> list[str]:
        """Return the group's members heard within four times `silence_s`, by name."""
        now_s = self._steady_s()
        return sorted(
            each for each, heard_s in self._members.get(group, {}).copy().items()
            if now_s - heard_s < _MEMBER_SILENCES * silence_s
        )  # fmt: skip


class _Free(float):
    """The time from which a claim without a holder may be handed out."""

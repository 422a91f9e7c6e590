"""Keep: which files a subscriber's copy of a merged log keeps: as the nodes do, more or fewer."""

import math
import time
from dataclasses import dataclass
from typing import Final

from archiver.decide import decide
from archiver.plan import archived_to, rolled_files
from archiver.policy import Policy, parse_limit
from rt.config.kinds import parse_seconds
from rt.errors import Misuse
from rt.format.manifest import Archived
from rt.log.files.archived import KEPT
from rt.log.write.appender import Appender
from rt.names import shown

FOLLOW: Final = "follow"
ALL: Final = "all"


@dataclass(frozen=True, slots=True)
class Keep:
    """A copy's retention: it follows the nodes, keeps everything, or has a policy of its own.

    Attributes:
        follows: whether the copy archives each file that the nodes archive.
        policy: the copy's own rules, or None.
    """

    follows: bool = True
    policy: Policy | None = None

    def keeps(self, _entry: Archived) -> bool:
        """Whether this copy keeps the bytes of a file when the nodes archive it."""
        return not self.follows

    def sweep(self, log: Appender) -> int:
        """Archive files by the copy's own policy, if it has one; return how many."""
        if self.policy is None:
            return 0
        known, now_ns = log.manifest, time.time_ns()
        files = rolled_files(known, archived_to(known), log.end.file)
        active = log.end.offset if log.is_open else 0
        decisions = decide(self.policy, files, active, now_ns=now_ns)
        if decisions:
            lines = [Archived(start, now_ns, f"{KEPT} {why}") for start, why in decisions]
            log.archive_all(lines)
        return len(decisions)


def parse_keep(text: str) -> Keep:
    """Parse what a subscriber's copy keeps: `follow`, `all`, a time (`14d`) or a size (`90Gi`).

    >>> parse_keep("14d").policy
    Policy(time=20160, limit=None, disk=100, messages=None)
    >>> parse_keep("1Gi").policy
    Policy(time=0, limit=1073741824, disk=100, messages=None)
    """
    if text == FOLLOW:
        return Keep()
    if text == ALL:
        return Keep(follows=False)
    try:
        if text.endswith("i") or text.isdecimal():
            return Keep(follows=False, policy=Policy(time=0, limit=parse_limit(text), disk=100))
        minutes = math.ceil(parse_seconds(text) / 60)
    except (ValueError, ArithmeticError):
        raise Misuse(
            f"keep is {shown(text)}; use follow, all, a time such as 14d, or a size such as 90Gi"
        ) from None
    if not minutes:
        raise Misuse("keep is 0; use a minute or more, or follow")
    return Keep(follows=False, policy=Policy(time=minutes, disk=100))

"""DamageFound: damage found in one of this node's logs."""

from dataclasses import dataclass
from typing import Final

from rt.errors import CorruptLog
from rt.log.write.appender import Appender
from rt.position import START
from sequencer.planning.holdings import Holdings

ROLLED: Final = "it is in a rolled file, which is fetched from another node"


@dataclass(frozen=True, slots=True)
class DamageFound:
    """DamageFound: a report of damage.

    Attributes:
        damage: what is wrong, and where.
        log: the log object that was open when the damage was found. A log that is set aside or
            copied gets another object, so an outdated report is recognized.
        scrubbed: whether a scrub found the damage; no peer is then known to have the bytes.
    """

    damage: CorruptLog
    log: Appender
    scrubbed: bool = False


def is_elsewhere(found: DamageFound, holdings: Holdings) -> bool:
    """Whether another node is known to hold everything that a damaged copy of a session held.

    Replacing the copy also gives up the bytes after the damage, which may be intact. A silent node
    does not count: it may be gone for good.
    """
    session = found.log.identity.name
    ends = (holdings.of(other).get(session, START) for other in holdings.heard_lately)
    return max(ends, default=START) >= found.log.end

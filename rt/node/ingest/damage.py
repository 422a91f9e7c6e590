"""DamageFound: damage that was found in one of this node's logs."""

from dataclasses import dataclass
from typing import Final

from rt.errors import CorruptLog
from rt.log.write.appender import Appender
from rt.position import START
from sequencer.planning.holdings import Holdings

ROLLED: Final = "it is in a rolled file, which is fetched from another node"


@dataclass(frozen=True, slots=True)
class DamageFound:
    """A report of damage.

    Attributes:
        damage: what is wrong, and where.
        log: the log as it was open then; once it has been set aside or copied, another one is.
        scrubbed: whether reading the file found it, so that no peer is known to have its bytes.
    """

    damage: CorruptLog
    log: Appender
    scrubbed: bool = False


def is_elsewhere(found: DamageFound, holdings: Holdings) -> bool:
    """Whether another node is known to hold all of a session's copy, of which a part is damaged.

    What follows the damage is given up with it, and may still be whole. A node that is silent may
    be gone for good, and what it held with it.
    """
    session = found.log.identity.name
    ends = (holdings.of(other).get(session, START) for other in holdings.heard_lately)
    return max(ends, default=START) >= found.log.end

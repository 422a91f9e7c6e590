"""DamageFound: damage that a connection found in one of this node's logs."""

from dataclasses import dataclass
from typing import Final

from rt.errors import CorruptLog
from rt.log.appender import Appender

ROLLED: Final = (  # what to do about damage there
    "it is in a rolled file, which is not repaired while the node runs: run `rt verify`, then stop"
    " the node, move the merged log's directory away and start the node, which copies the log again"
)


@dataclass(frozen=True, slots=True)
class DamageFound:
    """A report of damage.

    Attributes:
        damage: what is wrong, and where.
        log: the log as it was open then; once it has been set aside or copied, another one is.
    """

    damage: CorruptLog
    log: Appender

"""StandbyReach: how far a cluster's standby has come, according to the cluster's nodes."""

import logging
import math
from typing import Final, Self

from rt.client.readers.settings import ConnectionSettings
from rt.config.kinds import parse_seconds
from rt.errors import Misuse, RtError, spoken
from rt.names import shown
from rt.net.admin import ask_any, reading_answers
from rt.net.authority.identity import CertificateRole
from rt.net.known_nodes import KnownNodes
from rt.net.periodic_thread import PeriodicThread
from rt.position import START, Position

STANDBY: Final = "standby"
_EVERY_S: Final = 5.0  # a standby reports as often
_STOP_S: Final = 1.0
_log: Final = logging.getLogger("rt.client")


def parse_keep(text: str) -> float:
    """Return how many seconds to keep merged files; infinite for `standby`, 0 for "".

    >>> parse_keep("1h"), parse_keep("standby"), parse_keep("")
    (3600.0, inf, 0.0)
    """
    if text == STANDBY:
        return math.inf
    try:
        seconds = parse_seconds(text) if text else 0.0
    except (ValueError, ArithmeticError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise Misuse(f"keep is {shown(text)}; use a time such as 1h, or {STANDBY}")
    return seconds


def keeping(
    keep: str, settings: ConnectionSettings, known: KnownNodes
) -> "tuple[float, StandbyReach | None]":
    """Return how many seconds merged files are kept, and the `StandbyReach` that they wait for.

    The latter is None unless `keep` is `standby`.

    Args:
        keep: as for `parse_keep`.
        settings: the publishers' connection settings.
        known: the nodes.
    """
    seconds = parse_keep(keep)
    return (0.0, StandbyReach(settings, known)) if math.isinf(seconds) else (seconds, None)


class StandbyReach:
    """Tracks how much of the merged log is on a standby's disk, by asking the nodes regularly.

    It asks all nodes, because a standby reports to only one of them.

    Threads: this object's own thread asks; `position` is replaced as a whole, and any thread may
    read it.
    """

    def __init__(
        self, settings: ConnectionSettings, known: KnownNodes, *, every_s: float = _EVERY_S
    ) -> None:
        """Prepare; nothing is asked before `start`.

        Raises:
            Misuse: the certificate is not a publisher's.
        """
        self.position = START  # all merged before it is on a standby's disk
        self._contexts = settings.contexts(CertificateRole.PUBLISHER, successions=known.successions)
        self._known, self._every_s = known, every_s
        self._said = ""
        self._thread = PeriodicThread("standby reach", self._turn)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; wait a short time for a question that is under way."""
        self._thread.stop(_STOP_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def poll(self) -> None:
        """Ask each node once; a node that does not answer is left out."""
        found, errors = list[Position](), list[str]()
        for address in self._known.addresses:
            try:
                answer = ask_any([address], self._contexts, {"do": "standby-reach"}, election_s=0)
                with reading_answers():
                    found += [Position.parse(each) for each in answer["reached"].values()]
            except (RtError, OSError) as error:
                errors.append(spoken(error))
        self.position = max([self.position, *found])
        words = "" if self.position else f"; {errors[0]}" if errors else "; none has reported"
        if words and words != self._said:
            _log.warning("merged files are kept until a standby has them%s", words)
        self._said = words

    def _turn(self) -> float:
        self.poll()
        return self._every_s

"""Site: what a process has to show, whichever kind of process it is."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from prometheus_client.core import Metric

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SiteHealth:
    """Whether a process is alive, and whether it does now what it promises.

    Attributes:
        stuck: why a restart would help; "" if it would not.
        unready: why it does not do now what it promises, one word or phrase each.
        age_s: of what this is judged by.
    """

    stuck: str
    unready: tuple[str, ...]
    age_s: float


class Site(Protocol):
    """A node, a pusher or a puller, as its HTTP port shows it. Any thread may call all of it.

    No method waits for another thread of the process, asks a peer, or changes anything.
    """

    def part(self, stream: str) -> "Site":
        """Return the site of one stream, or of whatever the process shows for "".

        Raises:
            Misuse: the process does not serve it.
        """

    def metrics(self) -> Iterable[Metric]:
        """Yield everything that is measured."""

    def health(self) -> SiteHealth:
        """Return how it is."""

    def status(self) -> list[Fields]:
        """Return what `rt status --json` shows of it."""

    def overview(self) -> Fields:
        """Return what the page shows."""

    def sessions(self, search: str, limit: int) -> Fields:
        """Return the sessions whose names contain a text, those in trouble first."""

    def clients(self) -> Fields:
        """Return who pushes and pulls, in the form of `/rt-clients`."""

    def history(self) -> list[str]:
        """Return a JSON object for each file of the merged log, in the form of `/log-history`."""

    def files(self) -> list[Fields]:
        """Return the files of the merged log as the page shows them."""

    def start(self) -> None:
        """Begin whatever is needed to answer."""

    def stop(self) -> None:
        """End that."""

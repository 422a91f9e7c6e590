"""Site: what a process shows over HTTP, whatever kind of process it is."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import Metric

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SiteHealth:
    """Whether a process is alive, and whether it currently does its job.

    Attributes:
        stuck: why a restart would help; "" if it would not.
        unready: the reasons why it does not do its job now, each a word or phrase.
        age_s: age of the data that this is based on.
    """

    stuck: str
    unready: tuple[str, ...]
    age_s: float


class Site(ABC):
    """A node, a pusher or a puller, as its HTTP port shows it. Any thread may call any method.

    No method waits for another thread of the process, asks a peer, or changes anything. A program
    without sessions, clients or a merged log shows none.
    """

    @abstractmethod
    def part(self, stream: str) -> "Site":
        """Return the site of one stream; for "", the site that the process shows by default.

        Raises:
            Misuse: the process does not serve this stream.
        """

    @abstractmethod
    def metrics(self) -> Iterable[Metric]:
        """Yield all metrics."""

    @abstractmethod
    def health(self) -> SiteHealth:
        """Return the health of the process."""

    @abstractmethod
    def status(self) -> list[Fields]:
        """Return what `rt status --json` shows of the process."""

    @abstractmethod
    def overview(self) -> Fields:
        """Return what the page shows."""

    def sessions(self, search: str, limit: int) -> Fields:  # noqa: ARG002 - there are none
        """Return the sessions whose names contain `search`, those in trouble first."""
        return {"total": 0, "found": 0, "rows": []}

    def clients(self) -> Fields:
        """Return pushing and pulling clients, in the form of `/rt-clients`."""
        return {"result": {"node": "", "publishers": {}, "subscribers": {}}}

    def history(self) -> tuple[int, list[str]]:
        """Return when the files were read, and JSON for each file of the merged log."""
        return time.time_ns(), []

    def files(self) -> list[Fields]:
        """Return the files of the merged log as shown on the page."""
        return []

    def stop(self) -> None:  # noqa: B027 - most need nothing
        """Stop asking other nodes, because the process is ending."""

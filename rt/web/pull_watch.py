"""PullWatch: looks at a puller again and again, whether it has an HTTP port or not."""

from collections.abc import Mapping

from replicator.pull import PullClient
from rt.node.sampler import PULL
from rt.node.stalls import HopProgress
from rt.text import printable
from rt.web.watch import SiteWatch


class PullWatch(SiteWatch):
    """Knows whether a copy has stalled: it reaches no node, or does not catch up with one.

    Threads: as of `SiteWatch`.
    """

    def __init__(self, client: PullClient, pause_s: float) -> None:
        """Look at nothing before `start`.

        Args:
            client: which.
            pause_s: between two looks.
        """
        super().__init__(pause_s)
        self._client = client

    def progress(self) -> Mapping[str, HopProgress]:
        """Return how far the copy has come."""
        status = self._client.status()
        waits = not status.caught_up or not status.node
        return {PULL: HopProgress(status.position, waits)}

    def words(self, _hop: str = PULL) -> str:
        """Return a sentence about what keeps the copy."""
        status = self._client.status()
        if status.node:
            return f"{status.node} is connected, and the copy stays at {status.position}"
        return f"what is merged is not copied: {printable(status.error) or 'no node is connected'}"

"""PullWatch: regularly checks a puller's progress, with or without an HTTP port."""

from collections.abc import Mapping

from replicator.pull.client import PullClient
from rt.client.site_watch import SiteWatch
from rt.node.observe.stall_clock import PULL, STALLED_S, HopProgress
from rt.text import printable


class PullWatch(SiteWatch):
    """Detects a stall: the puller reaches no node, or its copy does not catch up with one.

    Threads: as for `SiteWatch`.
    """

    def __init__(self, client: PullClient, pause_s: float, stalled_s: float = STALLED_S) -> None:
        """Prepare to watch a puller; the other arguments are as for `SiteWatch`."""
        super().__init__(pause_s, stalled_s)
        self._client = client

    def progress(self) -> Mapping[str, HopProgress]:
        """Return how far the copy has come."""
        status = self._client.status()
        waits = not status.caught_up or not status.node
        return {PULL: HopProgress(status.position, waits)}

    def words(self, _hop: str = PULL) -> str:
        """Return a sentence that says what holds up the copy."""
        status = self._client.status()
        if status.node:
            return f"{status.node} is connected, and the copy stays at {status.position}"
        return (
            f"merged messages are not copied: {printable(status.error) or 'no node is connected'}"
        )

"""PullWatch: looks at a puller again and again, whether it has an HTTP port or not."""

from collections.abc import Mapping

from replicator.pull import PullClient
from rt.node.sampler import PULL
from rt.node.stalls import HopProgress
from rt.text import printable
from rt.web.watch import SiteWatch


class PullWatch:
    """Knows whether a copy has stalled: it reaches no node, or does not catch up with one.

    Threads: any thread may call any method but `look`, which one does at a time: the caller before
        `start`, the watch's thread after it.
    """

    def __init__(self, client: PullClient, pause_s: float) -> None:
        """Look at nothing before `start`.

        Args:
            client: which.
            pause_s: between two looks.
        """
        self._client = client
        self._watch = SiteWatch(self._progress, lambda _: self.words(), pause_s)

    @property
    def stalled(self) -> Mapping[str, float]:
        """The hop, if it is stalled, and for how many seconds."""
        return self._watch.stalled

    def start(self) -> None:
        """Begin to look."""
        self.look()
        self._watch.start()

    def stop(self) -> None:
        """End."""
        self._watch.stop()

    def stuck(self) -> str:
        """Return what to say if a look is 30 s late; "" if none is."""
        return self._watch.stuck()

    def look(self) -> None:
        """Look once."""
        self._watch.look()

    def words(self) -> str:
        """Return a sentence about what keeps the copy."""
        status = self._client.status()
        if status.node:
            return f"{status.node} is connected, and the copy stays at {status.position}"
        return f"what is merged is not copied: {printable(status.error) or 'no node is connected'}"

    def _progress(self) -> dict[str, HopProgress]:
        status = self._client.status()
        waits = not status.caught_up or not status.node
        return {PULL: HopProgress(status.position, waits)}

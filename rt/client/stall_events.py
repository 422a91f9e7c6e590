"""StallEvents: tells a client's publishers when none of their messages reach the nodes."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future

from replicator.push.client import PushClient
from rt.client.push_watch import PushWatch
from rt.client.site_watch import PAUSE_S
from rt.events import Flowing, Stalled
from rt.node.observe.stall_clock import STALLED_S

OnStall = Callable[[Stalled | Flowing], None]


class StallEvents(PushWatch):
    """Logs stalls as `rt push` does; calls a session's listener when a stall begins and ends.

    Threads: as for `PushWatch`; any thread may call `hear` and `forget`, which change the
    dictionary `_hearers` in one step. A check calls the listeners.
    """

    def __init__(self, client: PushClient, stalled_s: float = STALLED_S) -> None:
        """Prepare to watch a client's pusher."""
        super().__init__(client, PAUSE_S, stalled_s)
        self._hearers: dict[str, OnStall] = {}

    def hear(self, session: str, on_event: OnStall) -> None:
        """Have `on_event` called when this session stalls, and when it flows again."""
        self._hearers[session] = on_event

    def forget(self, session: str, on_event: OnStall | None) -> None:
        """Remove this function, unless another was registered for the session since."""
        if self._hearers.get(session) is on_event:
            self._hearers.pop(session, None)

    def changed(self, before: Mapping[str, float]) -> None:
        """Call the listeners of sessions that have stalled, or flow again, since the last check."""
        for session in self.stalled.keys() - before.keys():
            self._tell(Stalled(session, self.stalled[session], self.words(session)))
        for session in before.keys() - self.stalled.keys():
            self._tell(Flowing(session))

    def _tell(self, event: Stalled | Flowing) -> None:
        on_event = self._hearers.get(event.session)
        if on_event is not None:
            told: Future[None] = Future()
            told.add_done_callback(lambda _told: on_event(event))  # an error in it is logged
            told.set_result(None)

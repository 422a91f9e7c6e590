"""DutyTurns: a stream's duties in the turns of an event loop."""

from collections.abc import Callable
from contextvars import copy_context

from rt.net.loop.event_loop import EventLoop
from rt.node.agree.sequencer import NodeSequencer


class DutyTurns:
    """Steps a stream's `Duties` at the end of each turn that brought news, and when they are due.

    Threads: any thread may call `ring` and `leave`; the rest is the loop's own.
    """

    def __init__(
        self,
        loop: EventLoop,
        sequencer: NodeSequencer,
        guarded: Callable[[Callable[[], None]], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """Prepare; nothing is stepped before `join`.

        Args:
            loop: whose turns they are.
            sequencer: rings here from now on.
            guarded: calls what is a part of the node's work; an error in it ends the node.
            fail: ends the node with an error.
        """
        self._loop = loop
        self._sequencer = sequencer
        self._guarded = guarded
        self._run = copy_context().run  # its log lines name the stream
        self._has_joined = False
        self._fail = fail
        loop.add_failing(fail)
        sequencer.ring = self.ring

    def ring(self) -> None:
        """Have the duties done at the end of this turn."""
        self._loop.mark_last(self)

    def join(self) -> None:
        """Begin to step."""
        self._loop.call(self._begin)

    def leave(self) -> None:
        """Step no more; the caller does the rest with `NodeSequencer.run`."""
        self._loop.call(self._end)

    def ready(self) -> None:
        """Do the duties once."""
        if self._has_joined:
            self._run(self._guarded, self._step)

    def failed(self, _error: Exception) -> bool:
        """The node has ended because of it already."""
        return True

    def _begin(self) -> None:
        self._has_joined = True
        self.ready()

    def _end(self) -> None:
        self._has_joined = False
        self._loop.forget(self)
        self._loop.drop_failing(self._fail)

    def _step(self) -> None:
        at_s = self._sequencer.step()
        if at_s is not None:
            self._loop.deadlines.set(self, at_s)

"""NodesFollower: has a client follow the members of the cluster that it is connected to."""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from rt.errors import RtError
from rt.net.addresses import Address
from rt.net.authority.identity import CertificateRole
from rt.net.contexts import Contexts
from rt.net.known_nodes import KnownNodes
from rt.net.loop.event_loop import EventLoop
from rt.net.loop.timer import Aside, Timer


class NodesFollower:
    """NodesFollower: asks regularly for the members, in the turns of a client's event loop.

    Threads: any thread may call `start`, `apply_soon` and `stop`; the loop calls the rest.
    """

    def __init__(
        self,
        known: KnownNodes,
        contexts: Contexts,
        follow: Callable[[Sequence[Address]], None],
        roles: Collection[CertificateRole] = (CertificateRole.NODE,),
    ) -> None:
        """Prepare; nothing is asked before `start`.

        Args:
            known: the nodes known so far, to which the answers are added.
            contexts: the client's TLS contexts.
            follow: called by the loop with all nodes when they have changed.
            roles: the roles that may be asked.
        """
        self._known, self._contexts, self._follow = known, contexts, follow
        self._roles = roles
        self._followed = known.addresses
        self._next_s = float("-inf")
        self._timer: Timer | None = None

    def start(self, loop: EventLoop) -> None:
        """Have the loop ask for the members, now and at regular intervals."""
        self._timer = Timer(loop, self._turn, lambda _error: None)
        self._timer.set()

    def apply_soon(self) -> None:
        """Use the nodes in `known` at once, for example after a configuration was reloaded."""
        if self._timer is not None:
            self._timer.set()

    def stop(self) -> None:
        """Ask no more questions, without waiting for one that is under way."""
        if self._timer is not None:
            self._timer.stop(0)

    def _turn(self) -> float | Aside:
        self._apply()
        now_s = time.monotonic()
        if now_s < self._next_s:
            return self._next_s - now_s
        self._next_s = now_s + self._known.look_s
        return Aside(self._ask, lambda _error: self._apply())

    def _ask(self) -> None:
        with suppress(RtError, OSError):  # none answers, or none leads; it is asked again
            self._known.learn(self._contexts, self._roles)

    def _apply(self) -> None:
        self._known.refresh()
        if self._known.addresses != self._followed:
            self._followed = self._known.addresses
            self._follow(self._followed)

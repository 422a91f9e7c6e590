"""NodeSuccessions: spreads the statement that a node's log has ended, and seals its cluster."""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from rt.errors import SEALED, Misuse, Refused, RtError, spoken
from rt.log.files.disk import OsDisk
from rt.net.addresses import Address
from rt.net.admin import END, ask
from rt.net.authority.certificates import CertificateFiles
from rt.net.authority.succession import Succession, said_in
from rt.net.authority.successions import FIELD, Successions, own_path
from rt.net.authority.trust import trust_of
from rt.net.contexts import Contexts
from rt.net.fencing import EVERY_S, Fencing
from rt.net.loop.event_loop import EventLoop
from rt.net.loop.timer import Aside, Timer
from rt.net.tls import client_context

_REFUSED_S: Final = 30.0  # after a refusal that an operator has to end
_ANSWER_S: Final = 5.0
_log: Final = logging.getLogger("rt.node")


def node_successions(ca: str, stream: str, log: str, directory: str) -> Successions:
    """Return the statements that a node has about its log: how it began, and whether it ended.

    Args:
        ca: path of the authorities' certificates.
        stream: the node's stream.
        log: the id of the node's log.
        directory: where the node keeps the statement that its log has ended.

    Raises:
        Misuse: the kept statement is damaged.
        OSError: the disk failed.
    """
    return Successions(
        stream, lambda: trust_of(ca).facts.authorities, own_path(ca, stream), log=log,
        kept=(OsDisk(), directory),
    )  # fmt: skip


class NodeSuccessions:
    """NodeSuccessions: sends and receives the authority's statements about a node's own log.

    A statement that ends the log is kept in the node's directory. The node then asks all nodes of
    its cluster to seal the cluster, as `rt standby fence` does, until a majority has agreed and
    each node has received the statement.

    Threads: any thread may call any method. One thread at a time does the work that the timer puts
        aside; it uses `_told`, `_why` and `_asking`. The loop sets `_due_s` before that work, and
        the thread sets it afterwards.
    """

    def __init__(
        self,
        files: CertificateFiles,
        stream: str,
        log: str,
        nodes: Callable[[], Sequence[Address]],
        *,
        loop: EventLoop,
        directory: str,
        is_sealed: Callable[[], bool],
    ) -> None:
        """Read the statements about the log: that it continues another, or that it has ended.

        Args:
            files: the node's certificate, with which it asks its cluster.
            stream: the node's stream.
            log: the id of the node's log.
            nodes: returns the addresses of the cluster's nodes.
            loop: the event loop that has the cluster asked.
            directory: where the node keeps the statement that its log has ended.
            is_sealed: returns whether the cluster has agreed that another continues the log.

        Raises:
            Misuse: the kept statement is damaged.
            OSError: the disk failed.
        """
        self._files, self._stream = files, stream
        self._nodes, self._is_sealed = nodes, is_sealed
        self._told = set[Address]()  # nodes that have the statement
        self._known = node_successions(files.ca, stream, log, directory)
        self._asking: tuple[Fencing, Contexts, str] | None = None  # from the first question on
        self._due_s, self._why = float("-inf"), ""  # of the next attempt; why the last failed
        self._timer = Timer(loop, self._turn, lambda _error: None)

    def say(self) -> Sequence[str]:
        """Return the statements to send to every peer."""
        self._known.reload()
        return self._known.texts

    def hear(self, text: str) -> None:
        """Accept a peer's statement; if it ends this node's log, have the cluster sealed.

        Raises:
            Refused: the log of this node has ended; its cluster is being sealed.
        """
        if self._known.ended_by(text) is not None:
            self.start()
            self.demand_current()

    @property
    def ended(self) -> Succession | None:
        """The statement that ended the node's log; None if there is none."""
        return self._known.ended

    def demand_current(self) -> None:
        """Raise `Refused` if a statement has ended this node's log."""
        self._known.demand_current()

    def start(self) -> None:
        """Have the cluster sealed, if the log has ended; idempotent."""
        if self.ended is not None:
            self._timer.set()

    def stop(self) -> None:
        """Stop asking the cluster; do not wait for a request that is under way."""
        self._timer.stop(0)

    def _turn(self) -> float | Aside | None:
        word, now_s = self.ended, time.monotonic()
        if word is None:
            return None
        if now_s < self._due_s:
            return self._due_s - now_s
        self._due_s = now_s + EVERY_S
        return Aside(partial(self._fence, word), lambda _error: None)

    def _fence(self, word: Succession) -> None:
        """Ask the nodes to seal their cluster, and send them `word`, which ended the log.

        This is repeated, since an operator may unseal the cluster at a node that lacks `word`.
        """
        if self._asking is None:
            text = next(each for each in self._known.texts if said_in(each) == word)
            contexts = Contexts(self._files, client_context, self._stream)
            self._asking = Fencing(self._nodes, contexts, text), contexts, text
        fencing, contexts, text = self._asking
        pause_s, why = EVERY_S, ""
        try:
            self._known.keep()
            if not self._is_sealed() and not fencing.attempt():
                why = fencing.failure
        except (Misuse, Refused) as error:
            why, pause_s = str(error), _REFUSED_S
        except OSError as error:  # the statement cannot be kept
            why = spoken(error)
        if why and why != self._why:
            _log.warning("this cluster's log has ended, and it is not sealed yet: %s", why)
        self._why = why
        self._tell(contexts, text)
        self._due_s = time.monotonic() + pause_s

    def _tell(self, contexts: Contexts, text: str) -> None:
        """Send the statement to each node that lacks it; a node that is down gets it later."""
        for address in set(self._nodes()) - self._told:
            try:
                ask(address, contexts, {"do": END, FIELD: text}, answer_s=_ANSWER_S)
            except (RtError, OSError) as error:
                if getattr(error, "code", "") != SEALED:  # as earlier versions answer
                    continue
            self._told.add(address)

"""NodeSuccessions: hands on which log continues a node's, and has its cluster sealed by it."""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from rt.about import speak_of
from rt.errors import Misuse, Refused
from rt.net.admin import Address
from rt.net.authority.certificates import CertificateFiles
from rt.net.authority.succession import said_in
from rt.net.authority.successions import Successions, ended, own_path
from rt.net.authority.trust import trust_of
from rt.net.contexts import Contexts
from rt.net.fencing import EVERY_S, Fencing
from rt.net.tls import client_context

_REFUSED_S: Final = 30.0  # after a refusal that an operator has to end
_log: Final = logging.getLogger("rt.node")


class NodeSuccessions:
    """NodeSuccessions: what a node says and hears of the authority's words on its log.

    By a word that ends the log, a thread asks the cluster as `rt standby fence` does, until a
    majority has agreed on its seal.

    Threads: any thread may call any method. `_lock` guards `_thread`.
    """

    def __init__(
        self,
        files: CertificateFiles,
        stream: str,
        log: str,
        nodes: Callable[[], Sequence[Address]],
        about: str = "",
    ) -> None:
        """Read the word by which the log began, if it continues another's.

        Args:
            files: the node's certificate, with which it asks its cluster.
            stream: its stream.
            log: the id of its log.
            nodes: returns the addresses of its cluster.
            about: prefix of its log lines.
        """
        self._files, self._stream, self._about = files, stream, about
        self._nodes = nodes
        self._known = Successions(
            stream,
            lambda: trust_of(files.ca).facts.authorities,
            own_path(files.ca, stream),
            log=log,
        )
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def say(self) -> Sequence[str]:
        """Return what to tell every peer."""
        self._known.look()
        return self._known.texts

    def hear(self, text: str) -> None:
        """Take what a peer says.

        Raises:
            Refused: the log of this node has ended; its cluster is being sealed.
        """
        if (word := self._known.ended_by(text)) is not None:
            self._fence(next(each for each in self._known.texts if said_in(each) == word))
            raise ended(word)

    def stop(self) -> None:
        """Ask no more; a question that is under way is not waited for."""
        self._stopping.set()

    def _fence(self, text: str) -> None:
        with self._lock:
            if self._stopping.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            contexts = Contexts(self._files, client_context, self._stream)
            fencing = Fencing(self._nodes, contexts, text)
            self._thread = threading.Thread(
                target=self._run, args=(fencing,), name="fence", daemon=True
            )
            self._thread.start()

    def _run(self, fencing: Fencing) -> None:
        speak_of(self._about)
        pause_s, known = 0.0, ""
        while not self._stopping.wait(pause_s):
            pause_s = EVERY_S
            try:
                if fencing.attempt():
                    return
                why = fencing.failure
            except (Misuse, Refused) as error:
                why, pause_s = str(error), _REFUSED_S
            if why != known:
                known = why
                _log.warning("this cluster's log has ended, and it is not sealed yet: %s", why)

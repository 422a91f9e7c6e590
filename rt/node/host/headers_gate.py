"""HeadersGate: whether messages may have headers: once all nodes can read them and agree."""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final

from rt.errors import Refused
from rt.node.agree.sequencer import NodeSequencer
from sequencer.ledger.instruction import Note, note_digest
from sequencer.peers.connections import Peers
from sequencer.peers.versions import HEADERS

# A note of the ledger: all members could read headers at some time. It stays, because messages
# published since then have headers.
HEADERS_NOTE: Final = "headers"
HEADERS_TEXT: Final = "1"
_ORDER_S: Final = 1.0  # between two proposals


class HeadersGate:
    """HeadersGate: why messages may not have headers yet, and the proposal to allow them.

    Threads: any thread may ask; `_ordered_s` is one number, and two proposals are harmless.
    """

    def __init__(
        self,
        others: Callable[[], Collection[str]],
        peers: Peers | None,
        sequencer: NodeSequencer,
    ) -> None:
        """Prepare.

        Args:
            others: returns the other members.
            peers: knows what they speak; None without any.
            sequencer: knows the agreed notes, and proposes.
        """
        self._others, self._peers, self._sequencer = others, peers, sequencer
        self._ordered_s = float("-inf")

    def why_not(self) -> str:
        """Return what must be updated before messages may have headers; "" if they may."""
        unable, is_agreed = [], self._is_agreed
        spoken, versions = self._spoken, self._peers.versions() if self._peers else {}
        for name in sorted(self._others()):
            if name not in spoken:
                if is_agreed:  # it could read them, and may be down now
                    continue
                unable.append(f"node {name} has not been heard since this one started")
            elif spoken[name] < HEADERS:
                version = versions.get(name)
                runs = (version and version.software) or "an older version of rt"
                unable.append(f"node {name} runs {runs}, which cannot read headers")
        if unable:
            return f"{', '.join(unable)}; update rt on every node, and start all of them, first"
        if is_agreed:
            return ""
        self.agree()
        return "the nodes are about to agree that messages may have headers; retry in a second"

    def agree(self) -> None:
        """Have headers allowed, if this node leads and all members can read them."""
        spoken, now_s = self._spoken, time.monotonic()
        if self._is_agreed or now_s < self._ordered_s + _ORDER_S:
            return
        if all(spoken.get(each, 0) >= HEADERS for each in self._others()):
            self._ordered_s = now_s
            note = Note(time.time_ns(), HEADERS_NOTE, HEADERS_TEXT, note_digest(""))
            with suppress(Refused):
                self._sequencer.order(note)

    @property
    def _is_agreed(self) -> bool:
        return HEADERS_NOTE in self._sequencer.view.notes

    @property
    def _spoken(self) -> Mapping[str, int]:
        """The protocol version of each member's last connection."""
        return self._peers.spoken if self._peers else {}

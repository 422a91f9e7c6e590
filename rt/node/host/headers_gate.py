"""HeadersGate: whether messages may have headers: once all nodes can read them and agree."""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final

from rt.errors import Refused
from sequencer.ledger.instruction import Instruction, Note, note_digest
from sequencer.peers.versions import HEADERS, PeerVersion

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
        spoken: Callable[[], Mapping[str, int]],
        versions: Callable[[], Mapping[str, PeerVersion]],
        notes: Callable[[], Mapping[str, str]],
        propose: Callable[[Instruction], None],
    ) -> None:
        """Prepare.

        Args:
            others: returns the other members.
            spoken: returns the protocol version of each member's last connection.
            versions: returns the versions of the connected members.
            notes: returns the agreed notes.
            propose: proposes an instruction; raises `Refused` unless this node leads.
        """
        self._others, self._spoken, self._versions = others, spoken, versions
        self._notes, self._propose = notes, propose
        self._ordered_s = float("-inf")

    def why_not(self) -> str:
        """Return what must be updated before messages may have headers; "" if they may."""
        spoken, unable, is_agreed = self._spoken(), [], HEADERS_NOTE in self._notes()
        for name in sorted(self._others()):
            if name not in spoken:
                if is_agreed:  # it could read them, and may be down now
                    continue
                unable.append(f"node {name} has not been heard since this one started")
            elif spoken[name] < HEADERS:
                version = self._versions().get(name)
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
        spoken, now_s = self._spoken(), time.monotonic()
        if HEADERS_NOTE in self._notes() or now_s < self._ordered_s + _ORDER_S:
            return
        if all(spoken.get(each, 0) >= HEADERS for each in self._others()):
            self._ordered_s = now_s
            with suppress(Refused):
                self._propose(Note(time.time_ns(), HEADERS_NOTE, HEADERS_TEXT, note_digest("")))

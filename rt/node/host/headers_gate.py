"""HeadersGate: whether messages may have headers; the nodes agree on it once all can read them."""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final

from rt.errors import Refused
from sequencer.ledger.instruction import Instruction, Note, note_digest
from sequencer.peers.versions import HEADERS, PeerVersion

# A note of the ledger: at some time all members could read headers. It stays, for what was
# published since then has them.
HEADERS_NOTE: Final = "headers"
HEADERS_TEXT: Final = "1"
_ORDER_S: Final = 1.0  # between two proposals


class HeadersGate:
    """Why no message may have headers yet, and the proposal that they may.

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
            others: the other members.
            spoken: by member, the protocol of its last connection.
            versions: of the members that are connected.
            notes: the agreed notes.
            propose: an instruction; `Refused` where this node does not lead.
        """
        self._others, self._spoken, self._versions = others, spoken, versions
        self._notes, self._propose = notes, propose
        self._ordered_s = float("-inf")

    def why_not(self) -> str:
        """Return what has to be updated before messages may have headers; "" if they may."""
        spoken, unable, is_agreed = self._spoken(), [], HEADERS_NOTE in self._notes()
        for name in sorted(self._others()):
            if name not in spoken:
                if is_agreed:  # it could, and may be down now
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
        """Have it agreed on that messages may have headers, if this node leads and all can."""
        spoken, now_s = self._spoken(), time.monotonic()
        if HEADERS_NOTE in self._notes() or now_s < self._ordered_s + _ORDER_S:
            return
        if all(spoken.get(each, 0) >= HEADERS for each in self._others()):
            self._ordered_s = now_s
            with suppress(Refused):
                self._propose(Note(time.time_ns(), HEADERS_NOTE, HEADERS_TEXT, note_digest("")))

"""LevelGate: keeps a cluster's format level at what all of its nodes can read."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from rt.errors import Misuse, Refused
from rt.node.agree.view import NodeView
from rt.version import SOFTWARE
from sequencer.ledger.format_level import (
    CODE,
    HEADERS,
    LEVEL_NOTE,
    NEWEST,
    OLDEST,
    FormatLevel,
    level_of,
    parse_level,
)
from sequencer.ledger.instruction import Note, note_digest
from sequencer.peers.connections import Peers
from sequencer.peers.versions import version_of

_OLD: Final = "an older version of rt"


class LevelGate:
    """LevelGate: a cluster's format level, and the level that each node can read.

    Threads: any thread may call any method.
    """

    def __init__(
        self,
        name: str,
        others: Callable[[], Collection[str]],
        peers: Callable[[], Peers | None],
        view: Callable[[], NodeView],
    ) -> None:
        """Prepare.

        Args:
            name: this node's name.
            others: returns the other members.
            peers: returns the connections to other nodes, which know each member's protocol
                version; None if this node has no connections.
            view: returns the node's latest view, with the agreed notes.
        """
        self._name, self._others, self._peers, self._view = name, others, peers, view

    @property
    def level(self) -> int:
        """The cluster's format level."""
        return level_of(self._view().notes)

    @property
    def agreed(self) -> FormatLevel | None:
        """The agreed level, and who raised it; None if there is none, or it cannot be read."""
        text = self._view().notes.get(LEVEL_NOTE)
        try:
            return None if text is None else parse_level(text)
        except Misuse:
            return None

    def nodes(self) -> dict[str, tuple[int, str]]:
        """Return each member's level (0 if it is not connected) and software version."""
        peers = self._peers()
        versions = peers.versions() if peers else {}
        found = {self._name: (NEWEST, SOFTWARE)}
        for name in self._others():
            version = versions.get(name)
            found[name] = (version.protocol, version.software or _OLD) if version else (0, "")
        return dict(sorted(found.items()))

    def obstacles(self) -> list[str]:
        """Return why the level cannot be raised to `NEWEST` now; empty if it can."""
        found = []
        for name, (level, software) in self.nodes().items():
            if not level:
                found.append(f"node {name} is not connected to node {self._name}")
            elif level < NEWEST:
                found.append(f"node {name} runs {software}, which reads up to level {level}")
        return found

    def raised(self, by: str, now_ns: int) -> str | None:
        """Return the text of a note that raises the level to `NEWEST`; None if that is the level.

        Raises:
            Refused: a node cannot read that level, or is not connected.
        """
        if self.level >= NEWEST:
            return None
        if obstacles := self.obstacles():
            raise Refused(CODE, f"{'; '.join(obstacles)}; update rt on every node, and start all")
        return FormatLevel(NEWEST, by, now_ns).text()

    def first_note(self) -> Note:
        """Return a new cluster's first instruction, which sets a level that all members can read.

        Members that have not connected yet are not considered.
        """
        level = max(OLDEST, min([NEWEST, *self._spoken.values()]))
        now_ns = time.time_ns()
        text = FormatLevel(level, "the founding of the cluster", now_ns).text()
        return Note(now_ns, LEVEL_NOTE, text, note_digest(""))

    def objection(self, alpn: str) -> str:
        """Return why a node with this ALPN name cannot read the cluster's formats; "" if it can."""
        level, spoken = self.level, version_of(alpn)
        if spoken is None or spoken >= level:  # None: not the protocol between nodes
            return ""
        return (
            f"it reads up to level {spoken} of the cluster's formats, and the cluster has "
            f"level {level}; start it with rt of the other nodes' version"
        )

    def why_no_headers(self) -> str:
        """Return what must be done before messages may have headers; "" if they may."""
        if self.level >= HEADERS:
            return ""
        obstacles = self.obstacles() or ["all nodes can read them"]
        return f"{'; '.join(obstacles)}; update rt on every node, then: rt cluster upgrade finalize"

    @property
    def _spoken(self) -> Mapping[str, int]:
        """The protocol version of each member's last connection."""
        peers = self._peers()
        return peers.spoken if peers else {}

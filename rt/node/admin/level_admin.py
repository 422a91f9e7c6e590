"""LevelAdmin: shows and raises the level of a cluster's formats for an operator."""

from collections.abc import Callable
from dataclasses import asdict

from rt.net.authority.identity import PeerIdentity
from rt.net.exchange import Fields
from rt.node.admin.verb import CHANGE, Verb
from rt.node.agree.level_gate import LevelGate
from sequencer.ledger.format_level import FEATURES, LEVEL_NOTE, NEWEST


class LevelAdmin:
    """LevelAdmin: answers the requests of `rt cluster upgrade`; any thread may call it."""

    def __init__(
        self,
        gate: LevelGate,
        change_note: Callable[[str, Callable[[str, int], str | None]], object],
    ) -> None:
        """Prepare; `change_note` changes a note by agreement, like `ChangedNotes.change`."""
        self._gate, self._change_note = gate, change_note

    @property
    def verbs(self) -> dict[str, Verb]:
        """The requests that this object serves, by name."""
        return {"level": Verb(self._show), "raise-level": CHANGE(self._raise)}

    def _show(self, _request: Fields, _identity: PeerIdentity) -> Fields:
        """Return the cluster's level, and the level that each node can read, if known here."""
        gate = self._gate
        level, agreed = gate.level, gate.agreed
        return {
            "level": level,
            "agreed": None if agreed is None else asdict(agreed),
            "newest": NEWEST,
            "nodes": [
                {"name": name, "reads": reads, "software": software}
                for name, (reads, software) in gate.nodes().items()
            ],
            "obstacles": gate.obstacles() if level < NEWEST else [],
            "features": [
                {"level": each, "since": feature.since, "words": feature.words}
                for each, feature in FEATURES.items()
            ],
        }

    def _raise(self, request: Fields, identity: PeerIdentity) -> Fields:
        """Raise the level to the newest, if it is not yet; return the answer of `_show`."""
        self._change_note(
            LEVEL_NOTE, lambda _text, now_ns: self._gate.raised(identity.title, now_ns)
        )
        return self._show(request, identity)

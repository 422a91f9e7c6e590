"""A cluster whose merged log is copied by readers and mirrors."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING

from rt.position import Position

from .checkers import Violation
from .merge_cluster import MergeCluster
from .merge_node import MergeNode

if TYPE_CHECKING:
    from .pullers import Copier, Mirror


class ReadCluster(MergeCluster):
    """Checks that a source which a reader leaves for its lag has less than was merged."""

    _cut_off: set[tuple[str, str]]  # pairs of reader and source that are cut off
    _sources: "dict[str, MergeNode | Mirror]"
    left_count = 0

    def mirrors_of(self) -> "Mapping[str, Mirror]":
        """All mirrors, by name."""
        return {}

    @property
    def sources(self) -> "dict[str, MergeNode | Mirror]":
        """Return everything that can be copied from."""
        if not self._sources:
            nodes = {name: node for name, node in self.nodes.items() if isinstance(node, MergeNode)}
            self._sources = {**nodes, **self.mirrors_of()}
        return self._sources

    @property
    def now_s(self) -> float:
        """The readers' clock."""
        return self.clock.now_us / 1e6

    @property
    def merged_end(self) -> Position:
        """Return up to where any node has merged."""
        return self.stream.end

    def reads_from(self, reader: "Copier", source: "MergeNode | Mirror") -> bool:
        """Whether a reader reaches a source now, even one that is cut off from other nodes."""
        if (reader.name.split(".")[0], source.name) in self._cut_off:
            return False
        return self._serves(source)

    def _serves(self, source: "MergeNode | Mirror") -> bool:
        if not isinstance(source, MergeNode):
            return True
        return source.alive and self.clock.now_us >= source.paused_until_us

    def cut_off(self, name: str, sources: Sequence[str], chance: Random) -> None:
        """Cut a reader or mirror off from a source, or from all, or restore all links."""
        if chance.random() < 0.4:
            self._cut_off.clear()
            return
        gone = sources if chance.random() < 0.2 else [chance.choice(list(sources))]
        self._cut_off |= {(name, source) for source in gone}

    def leaves(self, source: str) -> None:
        """Check that a source which a reader leaves for its lag does lag.

        One that died as it caught up has sent nothing of that.
        """
        self.left_count += 1
        found = self.sources[source]
        if self._serves(found) and found.merged_end >= self.stream.end:
            raise Violation(f"{source} is left for its lag, and has all that was ever merged")

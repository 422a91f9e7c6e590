"""Verdict: one sentence that says whether a stream works, and what to do if it does not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rt.text import listed

OK, DEGRADED, BROKEN = "ok", "degraded", "broken"
FORKED: Final = "forked"  # the role shown for a node whose log differs from the majority's


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node as shown on the page.

    Attributes:
        name: the node.
        role: `leader`, `follower`, `candidate`, `learner` or `forked`; "" if unknown.
        trouble: what is wrong with the node, as a phrase; "" if nothing.
        is_away: whether it cannot be reached.
    """

    name: str
    role: str
    trouble: str
    is_away: bool

    @property
    def counts(self) -> bool:
        """Whether the node is reachable and counts towards a majority."""
        return not self.is_away and self.role not in ("learner", FORKED)


def verdict_of(leader: str, nodes: Sequence[NodeRow], stalls: Sequence[str]) -> tuple[str, str]:
    """Return a level, `ok`, `degraded` or `broken`, and a sentence about a stream.

    Args:
        leader: the known leader; "" if there is none.
        nodes: all nodes of the cluster.
        stalls: a sentence for each hop that is stalled.

    >>> rows = [NodeRow(name, "follower", "", is_away=name == "n3") for name in ("n1", "n2", "n3")]
    >>> verdict_of("n1", rows, [])
    ('degraded', 'Merging goes on without n3. One more loss stops it: bring n3 back.')
    >>> verdict_of("", rows, [])[0]
    'broken'
    """
    away = [each.name for each in nodes if each.is_away]
    found = [f"{each.name} {each.trouble}" for each in nodes if each.trouble and not each.is_away]
    troubles = f" {'; '.join(found)}." if found else ""
    if not leader:
        missing = f" {listed(away)} cannot be reached." if away else ""
        return BROKEN, (
            f"Nothing is merged: no node leads.{missing}{troubles} Publishers keep what they "
            "publish until a majority of the nodes is up and connected."
        )
    if stalls:
        return BROKEN, f"Stalled: {stalls[0]}.{troubles}"
    if away:
        spare = sum(each.counts for each in nodes) - (len(nodes) // 2 + 1)
        rest = f" One more loss stops it: bring {listed(away)} back." if spare <= 0 else ""
        return DEGRADED, f"Merging goes on without {listed(away)}.{rest}{troubles}"
    if found:
        return DEGRADED, f"It works, but {'; '.join(found)}."
    count = f"All {len(nodes)} nodes are" if len(nodes) > 1 else "The node is"
    alone = "" if len(nodes) > 1 else " A single node is not highly available."
    return OK, f"{count} well, and {leader} leads.{alone}"

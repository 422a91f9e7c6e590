"""The versions that a cluster's nodes run, and whether they can work together."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from rt.node.observe.answer_fields import checked, get

# Protocol versions of a node that is too old to report them.
_NODES_BEFORE: Final = (7,)
_WIRE_BEFORE: Final = (2, 2)


@dataclass(frozen=True, slots=True)
class NodeVersion:
    """The versions of rt and of its protocols on one node.

    Attributes:
        software: The version of rt; "" if the node did not report it.
        nodes: The versions of the protocol between nodes that the node can speak, oldest first.
        wire: The oldest and the newest version of the wire protocol that the node can speak.
    """

    software: str = ""
    nodes: tuple[int, ...] = _NODES_BEFORE
    wire: tuple[int, ...] = _WIRE_BEFORE

    @property
    def text(self) -> str:
        """Return the versions as one phrase."""
        nodes, wire = (" or ".join(map(str, each)) for each in (self.nodes, sorted({*self.wire})))
        return f"rt {self.software or '(unknown)'}, nodes' protocol {nodes}, wire {wire}"

    def works_with(self, other: "NodeVersion") -> bool:
        """Return whether this node and the other have a version of each protocol in common."""
        low, high = max(self.wire[0], other.wire[0]), min(self.wire[-1], other.wire[-1])
        return bool(set(self.nodes) & set(other.nodes)) and low <= high


def node_version(answer: dict[str, Any]) -> NodeVersion:
    """Read a node's versions from its status.

    Raises:
        TypeError: a field is of another type.
        ValueError: a number is out of range, or no version is named.
    """
    software, speaks = get(answer, "version", str), get(answer, "speaks", dict)
    if not speaks:
        return NodeVersion(software)
    return NodeVersion(software, _numbers(speaks, "nodes"), _numbers(speaks, "wire"))


def different_versions(versions: Mapping[str, NodeVersion]) -> str:
    """Return the versions that each node runs, as one line; "" if all run the same.

    >>> different_versions({"n1": NodeVersion("1.1"), "n2": NodeVersion("1.0")})
    "n2: rt 1.0, nodes' protocol 7, wire 2; n1: rt 1.1, nodes' protocol 7, wire 2"
    """
    found: dict[NodeVersion, list[str]] = {}
    for name, version in sorted(versions.items()):
        found.setdefault(version, []).append(name)
    if len(found) < 2:
        return ""
    oldest = sorted(found, key=lambda each: (each.nodes, each.wire, each.software))
    return "; ".join(f"{', '.join(found[each])}: {each.text}" for each in oldest)


def strangers(versions: Mapping[str, NodeVersion]) -> list[tuple[str, str]]:
    """Return the pairs of nodes that cannot work together."""
    every = sorted(versions.items())
    return [(a, b) for (a, one), (b, other) in combinations(every, 2) if not one.works_with(other)]


def _numbers(fields: dict[str, Any], name: str) -> tuple[int, ...]:
    numbers = tuple(sorted(checked(each, int, name) for each in get(fields, name, list)))
    if not 0 < len(numbers) <= 16:
        raise ValueError(f"{name} names {len(numbers)} versions")
    return numbers

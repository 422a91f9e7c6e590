"""ClusterLayout: names and paths of a new cluster's nodes, and their certificate authority."""

import os
from dataclasses import dataclass
from typing import Final

from rt.errors import Misuse
from rt.names import parse_node, shown
from rt.net.authority.certificates import AUTHORITY


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """ClusterLayout: the names, paths and certificate authority of a new cluster's nodes.

    Attributes:
        names: the nodes' names, one per address; n1, n2, ... if empty.
        root: each node's data directory on its own machine; "" for the cluster's directory on this
            machine.
        certs: each node's certificate directory on its own machine; "" for the one in the cluster's
            directory.
        authority: directory of the `ca.pem` and `ca.key` that sign the certificates; "" to make a
            new authority.
        grants: a file of grants to begin with; "" for none.
        succession: a file with the authority's statement that this cluster continues another's log;
            "" for none.

    Raises:
        Misuse: a name is not valid or given twice, or a path is not absolute.
    """

    names: tuple[str, ...] = ()
    root: str = ""
    certs: str = ""
    authority: str = ""
    grants: str = ""
    succession: str = ""

    def __post_init__(self) -> None:
        for name in self.names:
            if parse_node(name) in ("operator", AUTHORITY) or self.names.count(name) > 1:
                raise Misuse(f"{name} cannot name a node here; give each a name of its own")
        for path in (self.root, self.certs):
            if path and not os.path.isabs(path):
                raise Misuse(f"{shown(path)} is not an absolute path of the node's machine")

    def node_names(self, count: int) -> tuple[str, ...]:
        """Return the names of `count` nodes; `Misuse` if another number of names was given."""
        if self.names and len(self.names) != count:
            raise Misuse(f"{len(self.names)} names for {count} nodes; give one for each address")
        return self.names or tuple(f"n{number}" for number in range(1, count + 1))


HERE: Final = ClusterLayout()  # all on this machine

"""`rt up --add`: adds a node to a running cluster on this machine."""

import os
import re
from typing import Final

from rt.cli.cluster.members import ChangeRequests
from rt.cli.cluster.up_control import ControlRequest, ask_cluster, demand_running
from rt.cli.common.console import say
from rt.client.readers.settings import ConnectionSettings
from rt.config.settings import load
from rt.node.founding.cluster_files import CLIENTS_NAME, free_addresses, name_nodes

_TIMEOUT_S: Final = 120.0  # time to copy the merged log and to be promoted
_CONFIG: Final = re.compile(r"n(\d+)\.toml")


def add_node(root: str) -> None:
    """Add a node to the cluster in `root`, have `rt up` start it, and wait until it votes.

    If an earlier call was interrupted, completes that call instead of adding a second node.

    Raises:
        Misuse: No cluster is running there.
        Refused: The cluster does not accept another node.
        RtError: The node does not start.
    """
    demand_running(root)
    clients = os.path.join(root, CLIENTS_NAME)
    changes = ChangeRequests(
        load(ConnectionSettings, clients, "archive", environment={}), _TIMEOUT_S
    )
    learners = [name for name, each in changes.members.items() if not each["votes"]]
    name = learners[0] if learners else _next_name(root)
    if not learners:
        [address] = free_addresses(1)
        changes.add(name, address)
    say(ask_cluster(root, ControlRequest("add", name)))
    changes.promote(name)
    name_nodes(clients, [str(each["address"]) for each in changes.members.values()])
    say(f"{clients} names it too; programs that run find it by themselves")
    changes.show(as_json=False)


def _next_name(root: str) -> str:
    """Return the next unused node name; names of removed nodes are not used again."""
    found = [_CONFIG.fullmatch(each) for each in os.listdir(root)]
    return f"n{1 + max(int(each[1]) for each in found if each)}"

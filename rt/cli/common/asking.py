"""Asking: queries the status of all nodes of a stream at the same time."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from rt.client.readers.settings import ConnectionSettings
from rt.errors import RtError, spoken
from rt.net.tls import Contexts
from rt.node.founding.cluster_files import ask_status


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The result of querying one address.

    Attributes:
        address: host:port.
        answer: The node's status; empty if there is none.
        error: Why there is no answer; "" if there is one.
        is_refusal: Whether the other side refused us, or is not a node.
        sent_ns: Our clock when the question was sent.
        took_s: Seconds until the whole answer was here.
    """

    address: str
    answer: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    is_refusal: bool = False
    sent_ns: int = 0
    took_s: float = 0.0


def ask_nodes(settings: ConnectionSettings) -> list[NodeAnswer]:
    """Ask each node once, all at the same time, so that one that is down delays no other.

    Raises:
        Misuse: Our certificate cannot be used.
    """
    return ask_addresses(settings.addresses(), settings.contexts())


def ask_addresses(addresses: Sequence[tuple[str, int]], contexts: Contexts) -> list[NodeAnswer]:
    """Ask the nodes at these addresses.

    The threads are daemons, so that ctrl-C does not wait for nodes that do not answer.
    """
    found: dict[tuple[str, int], NodeAnswer] = {}

    def ask(address: tuple[str, int]) -> None:
        found[address] = _ask(address, contexts)

    asking = [Thread(target=ask, args=[each], name="ask", daemon=True) for each in addresses]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    return [found[each] for each in addresses]


def _ask(address: tuple[str, int], contexts: Contexts) -> NodeAnswer:
    host, port = address
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    sent_ns, began_s = time.time_ns(), time.monotonic()
    try:
        answer = ask_status(address, contexts)
    except (OSError, RtError) as error:
        is_refusal = isinstance(error, RtError)
        return NodeAnswer(where, {}, spoken(error), is_refusal, sent_ns)
    return NodeAnswer(where, answer, "", False, sent_ns, time.monotonic() - began_s)

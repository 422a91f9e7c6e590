"""Asking: queries the status of all nodes of a stream at the same time."""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, Final

from rt.cli.common.link import remember_nodes
from rt.client.readers.settings import ConnectionSettings
from rt.errors import Misuse, RtError, spoken
from rt.net.addresses import parse_address
from rt.net.status import ask_status
from rt.net.tls import Contexts

_LEADER: Final = "leader"
_MEMBERS_MAX: Final = 16  # a cluster has seven voters, and learners while it changes


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The result of querying one address.

    Attributes:
        address: host:port.
        answer: The node's status; empty if there is none.
        error: Why there is no answer; "" if there is one.
        is_refusal: Whether the other side refused the question, or is not a node.
        sent_ns: The local time at which the question was sent, ns since the epoch.
        took_s: Seconds until the whole answer had arrived.
    """

    address: str
    answer: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    is_refusal: bool = False
    sent_ns: int = 0
    took_s: float = 0.0


def ask_nodes(settings: ConnectionSettings) -> list[NodeAnswer]:
    """Ask all nodes for their status at the same time, so that a node that is down delays no other.

    Asks the configured addresses, then the other members at the addresses that the answers list. A
    configured address that does not answer is left out of the result if no member has it, since its
    node was removed or replaced. If no node lists the address at which it was asked, for example
    because a gateway is in between, exactly the configured addresses are asked and returned.

    Raises:
        Misuse: The certificate of this program cannot be used.
    """
    contexts = settings.contexts()
    found = ask_addresses(settings.addresses(), contexts)
    members = member_places(found)
    if not members:
        return found
    remember_nodes(member_places(found, only_voters=True))
    asked = {parse_address(each.address) for each in found}
    found += ask_addresses([each for each in members if each not in asked], contexts)
    return [each for each in found if not each.error or parse_address(each.address) in members]


def member_places(
    found: Sequence[NodeAnswer], *, only_voters: bool = False
) -> list[tuple[str, int]]:
    """Return the members' addresses, as listed in the nodes' answers.

    A node's list counts only if it has the address at which the node was asked: otherwise the
    listed addresses may be unreachable from here. The leader's list is preferred, since a lagging
    node may list a removed member.
    """
    lists, of_leaders = list[tuple[str, int]](), list[tuple[str, int]]()
    for each in found:
        answer = each.answer if isinstance(each.answer, dict) else {}
        addresses = answer.get("addresses")
        named = addresses if isinstance(addresses, dict) else {}
        voters = answer.get("members") if only_voters else None
        kept = voters if isinstance(voters, list) else [*named]
        places = _places(named[name] for name in kept if name in named)
        if parse_address(each.address) in _places(named.values()):
            lists += places
            of_leaders += places if answer.get("role") == _LEADER else []
    return list(dict.fromkeys(of_leaders or lists))


def _places(addresses: Iterable[object]) -> list[tuple[str, int]]:
    """Parse addresses, leaving out malformed ones; return at most 16."""
    found = []
    for each in addresses:
        with suppress(Misuse):
            found.append(parse_address(str(each)))
    return found[:_MEMBERS_MAX]


def ask_addresses(addresses: Sequence[tuple[str, int]], contexts: Contexts) -> list[NodeAnswer]:
    """Ask the nodes at these addresses at the same time; return the results in the same order.

    Each question runs in a daemon thread, so that ctrl-C does not wait for nodes that do not
    answer.
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
        return no_answer(where, error, sent_ns)
    return NodeAnswer(where, answer, "", False, sent_ns, time.monotonic() - began_s)


def no_answer(where: str, error: OSError | RtError, sent_ns: int = 0) -> NodeAnswer:
    """Return the result for an address, `where`, that could not be queried because of `error`."""
    return NodeAnswer(where, {}, spoken(error), isinstance(error, RtError), sent_ns)

"""KnownNodes: the addresses of a stream's nodes, from the configuration and the members."""

import json
import logging
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from rt.errors import RtError, spoken
from rt.log.files.disk import make_private_directory, read_small, replace_small
from rt.net.addresses import Address
from rt.net.admin import ask, ask_any, ask_named
from rt.net.authority.identity import CertificateRole
from rt.net.authority.succession import Succession
from rt.net.authority.successions import Successions
from rt.net.contexts import Contexts
from rt.net.tls import client_context

_log: Final = logging.getLogger(__name__)
_BYTES_MAX: Final = 32 * 1024  # of the file: 32 addresses of 255 bytes, three times
_NODES_MAX: Final = 32
_PORT_MAX: Final = 65535
_ANSWER_S: Final = 5.0
# Each question costs the leader a handshake of some 3 ms: 100 clients take 2 % of a processor.
LOOK_S: Final = 15.0


class KnownNodes:
    """KnownNodes: follows the members of a cluster, and remembers them across restarts.

    The leader is asked for the decided members. The leader's list is used if it shares an address
    with those in use or configured. Otherwise the configured addresses stay, because nodes that a
    client reaches through a gateway know each other by other addresses. If the configured list
    changes, the new list replaces what was learned.

    The leader's answer alone adds addresses but removes none: a pusher counts the nodes that it
    ships to, and otherwise one faulty node could leave the pusher with that node only (SECURITY, *A
    malicious member*). A new list is confirmed, and replaces the last confirmed one, when a
    majority of the nodes in that last one have named it, each with a certificate of its own.

    Threads: any thread may call any method. `_lock` guards all fields; each list of addresses is
    replaced whole, so any thread may read it.
    """

    def __init__(
        self,
        configured: Sequence[Address],
        path: str = "",
        *,
        look_s: float = LOOK_S,
        successions: Successions | None = None,
    ) -> None:
        """Read the addresses that were learned earlier.

        Args:
            configured: host and port of each node in the configuration; at least one.
            path: the file that stores the addresses; "" to store nothing.
            look_s: time between two questions of a client that follows the members.
            successions: statements of which log continues another; the addresses of the sites that
                continue the log are used too.
        """
        self.successions = successions
        self._path, self.look_s = path, look_s
        self._configured = tuple(dict.fromkeys(configured))
        self._confirmed, self._claimed = self._read()
        self.addresses = self._used()
        self._lock = threading.Lock()
        self._has_complained = False

    def ended(self, log: str) -> Succession | None:
        """Return the statement that ended a log; None if none is known."""
        return None if self.successions is None else self.successions.after(log)

    def refresh(self) -> None:
        """Also use the sites that are named in statements received since the last call."""
        with self._lock:
            self.addresses = self._used()

    def configure(self, configured: Sequence[Address]) -> None:
        """Use the nodes of a reloaded configuration, if they have changed."""
        nodes = tuple(dict.fromkeys(configured))
        with self._lock:
            if nodes != self._configured:
                self._configured = self._confirmed = nodes
                self._claimed = ()
                self.addresses = self._used()
                self._write()

    def learn(
        self, contexts: Contexts, roles: Collection[CertificateRole] = (CertificateRole.NODE,)
    ) -> bool:
        """Ask for the members; return whether the addresses have changed.

        Args:
            contexts: the certificate and the stream; the question has a connection of its own.
            roles: the roles that may be asked. Some clients have only mirrors' addresses; mirrors
                refuse the question.

        Raises:
            OSError, RtError: no node has answered, or none leads.
        """
        own = Contexts(contexts.files, client_context, contexts.stream)
        own.successions = self.successions
        asked = list(dict.fromkeys([*self.addresses, *self._configured]))
        answer = ask_any(
            asked, own, {"do": "members", "decided": True}, election_s=0.0,
            asking=partial(ask, roles=roles, answer_s=_ANSWER_S),
        )  # fmt: skip
        nodes = voters_in(answer)
        return self._is_news(nodes) and self.adopt(nodes, self._voices(own, nodes))

    def adopt(self, nodes: Sequence[Address], voices: Mapping[Address, str] | None = None) -> bool:
        """Use the addresses of the members that vote; return whether `addresses` has changed.

        Args:
            nodes: the addresses, as a leader named them.
            voices: for each node that named the same list, by its address, the name in its
                certificate. Only confirmed nodes count.
        """
        nodes, voices = tuple(nodes), voices or {}
        with self._lock:
            if not self._is_news(nodes):
                return False
            names = {voices[each] for each in self._confirmed if each in voices}
            before, known = self.addresses, (self._confirmed, self._claimed)
            if len(names) > len(self._confirmed) // 2:
                self._confirmed, self._claimed = nodes, ()
            else:
                self._claimed = tuple(each for each in nodes if each not in self._confirmed)
            self.addresses = self._used()
            if known != (self._confirmed, self._claimed):
                self._write()
        if set(before) == set(self.addresses):
            return False
        _log.info(
            "the nodes are %s now; they were %s", _text(self.addresses), _text(before),
            extra={"event": "nodes-changed"},
        )  # fmt: skip
        return True

    def _is_news(self, nodes: Sequence[Address]) -> bool:
        """Whether a list belongs to our cluster and differs from the confirmed one."""
        is_ours = not {*self.addresses, *self._configured}.isdisjoint(nodes)
        return is_ours and (bool(self._claimed) or set(nodes) != set(self._confirmed))

    def _voices(self, contexts: Contexts, nodes: Sequence[Address]) -> dict[Address, str]:
        """Ask the confirmed nodes; return the certificate names of those that also name `nodes`."""
        found = dict[Address, str]()
        for address in self._confirmed:
            with suppress(OSError, RtError):  # it is down, or no member any more
                name, answer = ask_named(address, contexts, {"do": "members"}, _ANSWER_S)
                if set(voters_in(answer)) == set(nodes):
                    found[address] = name
        return found

    def _used(self) -> tuple[Address, ...]:
        """Return the members' addresses, and those of the sites that continue the log."""
        texts = () if self.successions is None else self.successions.moved_to
        moved = [address for text in texts for address in addresses_in(text)]
        every = (*self._confirmed, *self._claimed, *moved)
        return tuple(dict.fromkeys(every))[:_NODES_MAX]

    def _read(self) -> tuple[tuple[Address, ...], tuple[Address, ...]]:
        """Return the confirmed and the unconfirmed addresses in the file.

        Return the configured addresses if the file cannot be used, or was written for
        different configured addresses.
        """
        unknown = self._configured, ()
        try:
            known = json.loads(read_small(self._path, _BYTES_MAX)) if self._path else {}
            configured = tuple(_address(each) for each in known.get("configured", ()))
            confirmed = tuple(_address(each) for each in known.get("nodes", ()))
            claimed = tuple(_address(each) for each in known.get("claimed", ()))
        except FileNotFoundError:
            return unknown
        except (OSError, ValueError, AttributeError, TypeError) as error:
            _log.warning("%s: the known nodes cannot be read, and are asked for: %s", self._path,
                         spoken(error) if isinstance(error, OSError) else error)  # fmt: skip
            return unknown
        return (confirmed, claimed) if confirmed and configured == self._configured else unknown

    def _write(self) -> None:
        """Write the addresses to the file; if that fails, a restart asks the configured nodes."""
        if not self._path:
            return
        known = {
            "configured": self._configured, "nodes": self._confirmed, "claimed": self._claimed
        }  # fmt: skip
        texts = {name: [f"{host}:{port}" for host, port in every] for name, every in known.items()}
        try:
            make_private_directory(os.path.dirname(os.path.abspath(self._path)))
            replace_small(self._path, f"{self._path}.new", json.dumps(texts).encode() + b"\n")
        except OSError as error:
            if not self._has_complained:
                words = "%s: the nodes cannot be remembered for the next start: %s"
                _log.warning(words, self._path, spoken(error))
            self._has_complained = True


def voters_in(answer: Mapping[str, Any]) -> tuple[Address, ...]:
    """Return the addresses of the voters in an answer to `members`; none if one is malformed."""
    members = answer.get("members")
    found = list[Address]()
    for each in members if isinstance(members, list) else ():
        if not isinstance(each, dict):
            return ()
        if each.get("votes") is True:
            try:
                found.append(_address(each.get("address")))
            except ValueError:
                return ()
    return tuple(dict.fromkeys(found))[:_NODES_MAX]


def _address(text: object) -> Address:
    host, _, port = str(text).rpartition(":")
    number = int(port) if port.isascii() and port.isdecimal() and len(port) <= 5 else 0
    if not host or not 0 < number <= _PORT_MAX:
        raise ValueError(f"{text!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), number


def addresses_in(text: str) -> Iterator[Address]:
    """Yield the valid addresses in a text of comma-separated addresses."""
    for each in text.split(","):
        with suppress(ValueError):
            yield _address(each)


def _text(nodes: Sequence[Address]) -> str:
    return ", ".join(f"{host}:{port}" for host, port in nodes)

"""Dialling: how the streams of a process connect to other nodes, and share their attempts."""

import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from rt.errors import PeerError, spoken
from rt.net.addresses import Address, address_text
from rt.net.authority.identity import PeerIdentity
from rt.net.tls import RefusedByPeer, connect
from sequencer.peers.versions import PEER_VERSIONS

# The streams of a process dial the same nodes. A handshake takes some 3 ms of processor time on
# either side, so a hundred at once would all time out, again and again.
AT_ONCE: Final = 4
# While an address is silent, one stream, its scout, tries it for all; another one takes over if the
# scout has not tried for this long.
SCOUT_S: Final = 3.0
UNACKNOWLEDGED_MS: Final = 2000  # a connection is given up if sent bytes go unacknowledged so long
_CONNECT_S: Final = 2.0
_REFUSED_S: Final = 0.2  # a running machine refuses within a round trip


class UnansweredError(PeerError):
    """Nothing answers at an address that another stream keeps trying."""


class Silence(NamedTuple):
    """Silence: an address at which nothing answers.

    Attributes:
        scout: identifies the one stream that keeps trying, on behalf of all, by its `again`
            callback.
        tried_s: when that stream last tried.
        problem: the error of that attempt.
    """

    scout: Callable[[], None]
    tried_s: float
    problem: str


class Turns:
    """Turns: lets a few threads dial an address at a time; while nothing answers, only one stream.

    Threads: any thread may call `at` and `give_up`. `_changed` guards all fields, and is notified
        whenever a turn ends.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._dials: Counter[Address] = Counter()  # under way
        self._silent: dict[Address, Silence] = {}
        self._waiting: dict[Address, dict[Callable[[], None], None]] = {}

    @contextmanager
    def at(self, address: Address, wait_s: float, again: Callable[[], None]) -> Iterator[None]:
        """Hold a turn to dial an address; an `OSError` in the block means that nothing answered.

        Args:
            address: host and port.
            wait_s: how long to wait for a turn.
            again: identifies the calling stream. After an `UnansweredError`, some thread calls it
                once something answers at the address, or the stream that kept trying gives up.

        Raises:
            UnansweredError: nothing answers, and another stream keeps trying.
            PeerError: no turn became free in time.
        """
        self._demand_scout(address, again)
        with self._changed:
            if not self._changed.wait_for(lambda: self._dials[address] < AT_ONCE, wait_s):
                host, port = address
                raise PeerError(f"other streams are connecting to {host}:{port} first")
            self._dials[address] += 1
        try:
            self._demand_scout(address, again)
            yield
        except OSError as error:
            self._note_silent(address, again, spoken(error))
            raise
        except UnansweredError:
            raise
        except BaseException:
            self._note_answer(address)  # something answered, if only another node
            raise
        else:
            self._note_answer(address)
        finally:
            with self._changed:
                self._dials[address] -= 1
                self._changed.notify_all()

    def _demand_scout(self, address: Address, again: Callable[[], None]) -> None:
        """If an address is silent, become its scout; `UnansweredError` if another stream is."""
        with self._changed:
            silence, now_s = self._silent.get(address), self._clock()
            if silence is None:
                return
            if silence.scout != again and now_s - silence.tried_s < SCOUT_S:
                self._waiting.setdefault(address, {})[again] = None
                raise UnansweredError(silence.problem)
            self._silent[address] = Silence(again, now_s, silence.problem)
            self._waiting.get(address, {}).pop(again, None)

    def _note_silent(self, address: Address, again: Callable[[], None], problem: str) -> None:
        with self._changed:
            silence = self._silent.get(address)
            if silence is None or silence.scout == again:
                self._silent[address] = Silence(again, self._clock(), problem)

    def _note_answer(self, address: Address) -> None:
        with self._changed:
            self._silent.pop(address, None)
            waiting = self._waiting.pop(address, {})
        for again in waiting:
            again()

    def give_up(self, again: Callable[[], None]) -> None:
        """Stop dialling; where this stream was the scout, wake the others so that one takes over.

        Args:
            again: the callback that the stream passed to `at`.
        """
        with self._changed:
            left = [each for each, silence in self._silent.items() if silence.scout == again]
            for address in left:
                del self._silent[address]
            waiting = [each for address in left for each in self._waiting.pop(address, ())]
            for others in self._waiting.values():
                others.pop(again, None)
        for each in waiting:
            each()


TURNS: Final = Turns()  # of all streams in this process


def removed_words(name: str) -> str:
    """Return the reason with which members refuse a removed node's connections."""
    return f"node {name} was removed from this cluster"


class PeerDialer:
    """Connects to one member.

    Args:
        name: the member; its certificate must have this name.
        addresses: where the member may listen; each is tried in turn.
        context: returns the TLS client context for the next connection. The context offers the ALPN
            names that `alpns_of` returns for this node's cluster, and no others.
        objection: returns why the answering node is refused by its certificate; "" if it is not.
        turns: the turns, shared by all streams that dial the same addresses.
        outdated: takes the ALPN name that the member speaks; returns why the member's version is
            too old, or "" if it is not.
    """

    def __init__(
        self,
        name: str,
        addresses: Sequence[Address],
        context: Callable[[], ssl.SSLContext],
        objection: Callable[[PeerIdentity], str] = lambda _peer: "",
        turns: Turns = TURNS,
        *,
        outdated: Callable[[str], str] = lambda _alpn: "",
    ) -> None:
        self._name, self._context, self._objection = name, context, objection
        self._turns, self._outdated = turns, outdated
        self.addresses = tuple(addresses)  # replaced whole, by any thread
        self.is_due = False  # whether to dial again without a pause
        self.verdict = ""  # why the member itself refused the last connection; set when dialling
        self._turn = 0

    def dial(self, again: Callable[[], None] = lambda: None) -> ssl.SSLSocket:
        """Return a non-blocking connection to the member.

        Args:
            again: as for `Turns.at`.

        Raises:
            UnansweredError: other streams have found all addresses silent, and keep trying them.
            PeerError: another node answered, or the answering node is refused.
            Refused: one side refused the other's certificate.
            OSError: nothing answered at the address.
        """
        left = len(self.addresses)
        while True:
            try:
                return self._dial_next(again)
            except UnansweredError:
                left -= 1
                if left <= 0:
                    raise

    def _dial_next(self, again: Callable[[], None]) -> ssl.SSLSocket:
        addresses = self.addresses
        address = addresses[self._turn % len(addresses)]
        self._turn += 1  # undone if this address is right
        self.verdict = ""
        try:
            with self._turns.at(address, _CONNECT_S, again):
                sock, identity = connect(address, self._context(), _CONNECT_S)
        except RefusedByPeer as refusal:
            if refusal.peer is not None and self._is_member(refusal.peer):
                self.verdict = refusal.words
            raise
        if not identity.is_node or identity.name != self._name:
            sock.close()
            raise PeerError(f"{identity.name!r} answers at {address_text(address)}")
        if why := self._objection(identity):
            sock.close()
            raise PeerError(f"the {self._name} at {address_text(address)} is refused: {why}")
        alpn = sock.selected_alpn_protocol()
        if alpn is None:
            sock.close()
            spoken_here = " or ".join(map(str, PEER_VERSIONS))
            raise PeerError(
                f"the {self._name} at {address_text(address)} is of another cluster, or of "
                f"another version: it does not speak {spoken_here} of the nodes' protocol"
            )
        if why := self._outdated(alpn):
            sock.close()
            raise PeerError(f"the {self._name} at {address_text(address)} is refused: {why}")
        self._turn -= 1
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
        sock.settimeout(0)
        return sock

    def give_up(self, again: Callable[[], None]) -> None:
        """Stop dialling; `again` is the callback that `dial` got."""
        self._turns.give_up(again)

    def _is_member(self, peer: PeerIdentity) -> bool:
        return peer.is_node and peer.name == self._name and not self._objection(peer)

    def is_refused(self) -> bool:
        """Whether the member's machine refuses connections at every address of the member.

        If the member has just hung up, such a refusal means that its process has ended. While the
        process runs, its machine accepts connections; a machine out of reach does not answer.
        """
        found = [_refuses(address) or _refuses(address) for address in self.addresses]
        return bool(found) and all(found)


def _refuses(address: Address) -> bool:
    """Whether an address refuses connections, as when the process there has ended."""
    try:
        socket.create_connection(address, _REFUSED_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    time.sleep(_REFUSED_S / 10)
    return False

"""Admission: which connections a server accepts, before and after it knows their certificates."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Final, NamedTuple

from replicator.limits.budgets import Budget, DaySessions
from replicator.wire.large_messages import LARGEST_BYTES
from rt.errors import Misuse, Refused
from rt.limits import GIB, MIB
from rt.net.authority.identity import CertificateRole, PeerIdentity

_BURST_S: Final = 10.0  # how many seconds' worth of connections may come at once
_REQUEST_TOKENS: Final = 0.125  # of a connection: 0.6 ms of processor time, of 5 ms
_NODE_MESSAGES: Final = 5  # a node relays many sessions, so it may send this many times as many
# Share of a processor for answering one name's questions: status, sessions, cursors, history.
_ANSWER_SHARE: Final = 0.05
_ANSWER_HELD_S: Final = 3.0  # maximum delay of an answer; clients wait 10 s for a status
_PREFIX_BITS: Final = 64  # of an IPv6 address; one holder has a whole /64
_RESERVED_ROLES: Final = frozenset({CertificateRole.NODE, CertificateRole.OPERATOR})


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """ServerLimits: what unknown peers, and all connections of one name, may use of a server.

    Attributes:
        connections: connections served at once; each takes 100 KiB, or 2 MiB during a backlog.
        reserved: connections reserved for the cluster's nodes and operators.
        identity_connections: connections of one certificate name.
        identity_connects_s: new connections per second of one name; ten seconds' worth may come at
            once.
        identity_sessions: different sessions that one name may push within a day.
        identity_bytes_s: bytes per second that one name may send and receive over all of its
            connections; beyond that it is slowed down.
        identity_messages_s: messages per second that one name may send on pushing and pulling
            connections; beyond that it is slowed down. A short message takes 2 to 50 us of a
            processor. A node of the cluster may send five times as many, of any size.
        identity_memory_bytes: bytes of arriving messages of one name, over all of its connections;
            beyond that a connection is refused. A node may briefly use twice as much.
        handshakes: simultaneous connections whose certificate is not known yet.
        address_handshakes: connections from one address (one /64 of IPv6) whose certificate is not
            known yet.
        handshake_s: seconds that a handshake may take.
    """

    connections: int = 512
    reserved: int = 32
    identity_connections: int = 128
    identity_connects_s: int = 50
    identity_sessions: int = 1024
    identity_bytes_s: int = GIB  # more than a node merges: lower it where others need their share
    identity_messages_s: int = 10_000
    identity_memory_bytes: int = 64 * MIB
    handshakes: int = 128
    address_handshakes: int = 64
    handshake_s: float = 10.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise Misuse(f"{name} is {getattr(self, name)}; use a number above 0")
        if self.identity_bytes_s < MIB:
            words = "use at least 1Mi, so that a turn of a connection fits into it"
            raise Misuse(f"identity_bytes_s is {self.identity_bytes_s}; {words}")
        if self.identity_memory_bytes < LARGEST_BYTES:
            words = "use at least 33Mi, so that the largest message fits into it"
            raise Misuse(f"identity_memory_bytes is {self.identity_memory_bytes}; {words}")
        if self.reserved >= self.connections:
            raise Misuse(f"reserved is {self.reserved}; use less than connections")


@dataclass(slots=True)
class _Account:
    """What the connections of one certificate name have used of the limits."""

    connections: int = 0
    tokens: float = 0.0  # connections that may be begun now
    filled_s: float = 0.0
    sessions: DaySessions = field(default_factory=DaySessions)
    budget: Budget = field(default_factory=Budget)  # of bytes and messages
    answers: Budget = field(default_factory=Budget)
    answer_s: float = 0.0  # the last answer's cost, charged to `answers`


class AnswerTurn(NamedTuple):
    """AnswerTurn: when a question may be answered.

    Attributes:
        held_s: seconds to wait before answering.
        expected_s: the seconds charged in advance to the budget for answers.
    """

    held_s: float
    expected_s: float


class Admission:
    """Admission: counts a server's connections, and decides which ones it accepts.

    A new connection is never refused for lack of a handshake slot; an older handshake is ended
    instead. It is the oldest one from the same address if that address has used up its slots, and
    otherwise the oldest one from the address with the most handshakes. So a flood ends its own
    handshakes. A genuine handshake takes milliseconds, and is ended only if it is the oldest one
    from its address.

    Threads: only the server's loop calls the methods; `limits` is replaced as a whole, by any
        thread.
    """

    def __init__(self, limits: ServerLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._handshakes: dict[object, str] = {}  # address of each, oldest first
        self._admitted: dict[object, str] = {}  # holder of each
        self._accounts: dict[str, _Account] = {}  # by holder

    def knock(self, key: object, host: str) -> object | None:
        """Count a new handshake; return the key of an older one to end in its place, or None."""
        address = network_of(host)
        victim = self._victim(address)
        if victim is not None:
            del self._handshakes[victim]
        self._handshakes[key] = address
        return victim

    def admit(self, key: object, identity: PeerIdentity) -> None:
        """Accept a connection whose certificate was verified, and count it.

        Raises:
            Refused: with code `displaced`, this handshake was ended in favour of a newer one. With
                `busy`, the server is full, or this name has too many connections, or connects too
                often.
        """
        if key not in self._handshakes:
            raise Refused("displaced", "this handshake was ended for a newer one")
        holder = _holder(identity)
        account = self._account(holder)
        self._check(account, identity)
        account.tokens -= 1
        account.connections += 1
        self._admitted[key] = holder
        del self._handshakes[key]

    def leave(self, key: object) -> None:
        """Stop counting a connection or handshake; does nothing if it is not counted."""
        self._handshakes.pop(key, None)
        holder = self._admitted.pop(key, None)
        if holder is not None:
            self._accounts[holder].connections -= 1

    def spend(self, identity: PeerIdentity, size: int, messages: int) -> float:
        """Charge a peer for bytes in both directions, and for the messages that it has sent.

        Returns:
            How many seconds to pause the connection.
        """
        limits = self.limits
        if identity.is_node:
            cost_s = messages / (_NODE_MESSAGES * limits.identity_messages_s)
        else:
            cost_s = max(size / limits.identity_bytes_s, messages / limits.identity_messages_s)
        return self._account(_holder(identity)).budget.spend(cost_s, self._clock())

    def request(self, identity: PeerIdentity) -> float:
        """Charge for a request on an open connection; return how many seconds to delay it.

        A request costs an eighth of a new connection, from the same budget.
        """
        account = self._account(_holder(identity))
        account.tokens -= _REQUEST_TOKENS
        return max(0.0, -account.tokens / self.limits.identity_connects_s)

    def ask(self, identity: PeerIdentity) -> AnswerTurn:
        """Charge for a question before it is answered; return when to answer it.

        The charge is the cost of the last answer to the same name, so that simultaneous questions
        of one name are answered one after another. Call `answered` afterwards to correct the
        charge.
        """
        account = self._account(_holder(identity))
        expected_s, now_s = account.answer_s, self._clock()
        held_s = account.answers.spend(expected_s, now_s) - expected_s
        return AnswerTurn(min(max(0.0, held_s), _ANSWER_HELD_S), expected_s)

    def answered(self, identity: PeerIdentity, turn: AnswerTurn, seconds: float, size: int) -> None:
        """Replace the charge of `turn` by the cost of the answer.

        The answer had `size` bytes, and took `seconds` of processor time.
        """
        cost_s = max(seconds / _ANSWER_SHARE, size / self.limits.identity_bytes_s)
        account = self._account(_holder(identity))
        account.answers.spend(cost_s - turn.expected_s, self._clock())
        account.answers.spent_s = min(account.answers.spent_s, _ANSWER_HELD_S)
        account.answer_s = cost_s

    def claim_session(self, identity: PeerIdentity, session: str) -> None:
        """Count a session that a peer pushes; a node's sessions are not counted.

        Raises:
            Refused: with code `sessions`, the peers of this name have already reached their daily
                limit with other sessions.
        """
        if identity.is_node:
            return  # a node relays sessions that publishers were granted
        now_s, most = self._clock(), self.limits.identity_sessions
        sessions = self._account(_holder(identity)).sessions
        if not sessions.admit(session, most, now_s):
            words = f"{identity.name!r} pushes {len(sessions.claimed_s)} sessions a day already"
            raise Refused("sessions", f"{words}; identity_sessions allows no more")

    def _victim(self, address: str) -> object | None:
        counts = Counter(self._handshakes.values())
        if counts[address] < self.limits.address_handshakes:
            if len(self._handshakes) < self.limits.handshakes:
                return None
            address = max(counts, key=counts.__getitem__)
        return next(key for key, each in self._handshakes.items() if each == address)

    def _account(self, holder: str) -> _Account:
        """Return a holder's account, with its tokens refilled; the first call creates it."""
        now_s, rate = self._clock(), self.limits.identity_connects_s
        full = _BURST_S * rate
        account = self._accounts.setdefault(holder, _Account(0, full, now_s))
        account.tokens = min(full, account.tokens + rate * (now_s - account.filled_s))
        account.filled_s = now_s
        return account

    def _check(self, account: _Account, identity: PeerIdentity) -> None:
        limits, name = self.limits, identity.name
        if account.connections >= limits.identity_connections:
            words = f"{name!r} has {account.connections} connections already"
            raise Refused("busy", f"{words}; identity_connections allows no more")
        if account.tokens < 1:
            words = f"{name!r} connects more than {limits.identity_connects_s} times a second"
            raise Refused("busy", f"{words}; identity_connects_s allows no more")
        places = limits.connections
        if identity.role not in _RESERVED_ROLES:
            places -= limits.reserved
        if len(self._admitted) >= places:
            words = f"{len(self._admitted)} connections are served already"
            raise Refused("busy", f"{words}, and no place is left for {name!r}")


def _holder(identity: PeerIdentity) -> str:
    return f"{identity.role}/{identity.name}"


def network_of(host: str) -> str:
    """Return an IPv4 address unchanged; for an IPv6 address, its /64, which has one holder."""
    host = host.partition("%")[0]  # the zone of a link-local address
    if ":" not in host:
        return host
    number = int(IPv6Address(host)) >> _PREFIX_BITS
    return f"{number:x}::/{_PREFIX_BITS}"

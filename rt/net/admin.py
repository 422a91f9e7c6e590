"""Admin client: asks a running node a question, or to change something."""

import json
import logging
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rt.errors import Misuse, PeerError, Refused, RtError, spoken
from rt.format.manifest import FILE_NAME, Rolled
from rt.inspect.history import Row, rolled_rows
from rt.net.exchange import Fields, decode_fields, receive_all, send_all
from rt.net.identity import CertificateRole
from rt.net.kept import KeptConnection
from rt.net.tls import Contexts, asking, connect
from rt.position import Position

ADMIN_ALPN: Final = "rt-admin/1"
END: Final = "end"  # asks where the merged log ends; mirrors answer it, too
_CONNECT_S: Final = 3.0
_REQUEST_S: Final = 10.0
_ANSWER_S: Final = 60.0  # 10 s for a decision, and the rest for 256 MiB at 5 MiB/s
_ANSWER_BYTES_MAX: Final = 256 << 20  # a manifest of a million files
_ELECTION_S: Final = 8.0  # several elections with default timeouts
_ELECTION_POLL_S: Final = 0.2
_ADDRESSES_MAX: Final = 32  # configured and learnt
_PORT_DIGITS: Final = 5
_PORT_MAX: Final = 65535
_NUMBER_END: Final = 1 << 63
_ACTIVE_NUMBERS: Final = 7  # of a `Rolled` line; a digest and session names may follow

PASSING: Final = ("undecided", "busy")  # what a node refuses for a while
_ELSEWHERE: Final = ("not-leader", "stopping")  # another node leads, or is about to

Address = tuple[str, int]

_log = logging.getLogger(__name__)


class NoLeader(RtError):  # noqa: N818
    """Nodes answered, and none of those that can be reached leads."""


@contextmanager
def reading_answers() -> Iterator[None]:
    """Turn an error while a node's answer is read into `PeerError`: the fault is the node's."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise PeerError(
            f"a node's answer cannot be read ({reason}); does it run our version?"
        ) from None


def ask(
    address: Address,
    contexts: Contexts,
    request: Fields,
    *,
    roles: Collection[CertificateRole] = (CertificateRole.NODE,),
    answer_s: float = _ANSWER_S,
) -> Fields:
    """Send one request to a node and return its answer.

    Args:
        address: of the node.
        contexts: what to show.
        request: what to ask.
        roles: what may answer.
        answer_s: how long the answer may take.

    Raises:
        Refused: the node refuses and says why; `not-leader` names the node that leads.
        Misuse: the node does not accept the request as valid.
        OSError: the node cannot be reached, or the answer is not complete after a minute.
        PeerError: the answer cannot be read.
    """
    data = _exchange(address, contexts, request, roles, answer_s)
    answer = _parsed(data, _where(address))
    _raise_if_error(answer)
    return answer


def member_addresses(address: Address, contexts: Contexts) -> list[Address]:
    """Return the addresses of the members that a node names; none if it does not answer."""
    try:
        members = ask(address, contexts, {"do": "members"}).get("members")
    except (OSError, RtError):
        return []  # it is gone again, or may not tell us
    found = []
    for each in members if isinstance(members, list) else []:
        host, _, port = str(each.get("address") if isinstance(each, dict) else "").rpartition(":")
        number = int(port) if port.isdecimal() and len(port) <= _PORT_DIGITS else 0
        if host and 0 < number <= _PORT_MAX:
            found.append((host, number))
    return found


def ask_any(addresses: Sequence[Address], contexts: Contexts, request: Fields) -> Fields:
    """Ask the nodes in turn until one answers; a change is answered by the leader alone.

    While the nodes that answer have no leader, as after one was stopped, they are asked again for
    some seconds.

    Raises:
        Refused: a node refused for a reason other than that another node leads, or that it stops.
        NoLeader: the nodes that answer have no leader.
        RtError: no node answers.
    """
    client = AdminClient(addresses, contexts)
    end_s, has_said = time.monotonic() + _ELECTION_S, False
    while True:
        try:
            return client.ask(request)
        except NoLeader:
            if time.monotonic() > end_s:
                raise
        if not has_said:
            _log.warning("no node leads yet; asking again for up to %g s", _ELECTION_S)
        has_said = True
        time.sleep(_ELECTION_POLL_S)


class AdminClient:
    """Makes requests of the node that leads, and remembers which one that was.

    Threads: one at a time.
    """

    def __init__(
        self, addresses: Sequence[Address], contexts: Contexts, *, keep: bool = False
    ) -> None:
        """Prepare.

        Args:
            addresses: of the nodes, the one to ask first in front.
            contexts: what to show.
            keep: whether one connection is used for all requests, until `close`.
        """
        self._addresses = list(addresses)
        self._contexts = contexts
        self._place = 0  # of the node to ask first
        self._kept = KeptConnection(contexts, ADMIN_ALPN) if keep else None

    def ask(self, request: Fields) -> Fields:
        """Ask the node that answered last, and then each other one; errors as for `ask_any`.

        A node that does not lead names the members, so a leader is found whose address the
        configuration does not have yet.
        """
        reasons, failure, left = [], RtError, len(self._addresses)
        while left:
            address = self._addresses[self._place]
            try:
                return self._ask(address, request)
            except Refused as error:
                if error.code not in _ELSEWHERE:
                    raise
                reasons.append(str(error))
                failure = NoLeader
                left += self._learn(address)
            except (OSError, PeerError) as error:
                reasons.append(f"{_where(address)}: {spoken(error)}")
            self._place = (self._place + 1) % len(self._addresses)
            left -= 1
        raise failure(f"no node accepted the request: {'; '.join(dict.fromkeys(reasons))}")

    def close(self) -> None:
        """Hang up; a request that follows dials again. Idempotent."""
        if self._kept is not None:
            self._kept.close()

    def _ask(self, address: Address, request: Fields) -> Fields:
        if self._kept is None:
            return ask(address, self._contexts, request)
        answer = _parsed(self._kept.exchange(address, request), _where(address))
        _raise_if_error(answer)
        return answer

    def _learn(self, address: Address) -> int:
        """Add the addresses of the members that a node names; return how many were not known."""
        before = len(self._addresses)
        for each in member_addresses(address, self._contexts):
            if each not in self._addresses and len(self._addresses) < _ADDRESSES_MAX:
                self._addresses.append(each)
        return len(self._addresses) - before


def ask_history(address: Address, contexts: Contexts) -> tuple[str, list[Row], Fields]:
    """Return the history of a node's merged log.

    Returns:
        The log's directory on the node, a row for each file it ever had, and its copies elsewhere.

    Raises:
        As `ask`, and CorruptLog: the node's manifest is damaged.
    """
    return parse_history(_exchange(address, contexts, {"do": "log-history"}), _where(address))


def parse_history(answer: bytes, where: str) -> tuple[str, list[Row], Fields]:
    """Return what a node's answer to `log-history` says; errors as for `ask_history`.

    Args:
        answer: a line of JSON, then the bytes of the node's manifest.
        where: the node's address, for messages.
    """
    line, _, data = answer.partition(b"\n")
    head = _parsed(line, where)
    _raise_if_error(head)
    if len(data) != head.get("bytes"):
        raise PeerError(f"{where} hung up in the middle of its history")
    directory, copies = str(head.get("directory")), head.get("offloaded") or {}
    if not isinstance(copies, dict):
        raise _unreadable(where)
    rows = rolled_rows(data, f"{directory}/{FILE_NAME}")
    if head.get("active"):
        active = Row(_active(head["active"], where), is_active=True)
        rows += [active] if not rows or active.first > rows[-1].first else []
    return directory, rows, dict(copies)


def _active(facts: Any, where: str) -> Rolled:
    """Return the line of the file that still grows, checked as a line of a manifest is."""
    numbers = facts[:_ACTIVE_NUMBERS] if isinstance(facts, list) else []
    texts = facts[_ACTIVE_NUMBERS:] if numbers else []
    if (
        len(numbers) != _ACTIVE_NUMBERS
        or not all(type(each) is int and 0 <= each < _NUMBER_END for each in numbers)
        or len(texts) > len(Rolled._fields) - _ACTIVE_NUMBERS
        or not all(isinstance(each, str) for each in texts)
    ):
        raise _unreadable(where)
    return Rolled(Position(numbers[0]), *numbers[1:], *texts)


def _exchange(
    address: Address,
    contexts: Contexts,
    request: Fields,
    roles: Collection[CertificateRole] = (CertificateRole.NODE,),
    answer_s: float = _ANSWER_S,
) -> bytes:
    connect_s = min(_CONNECT_S, answer_s)
    sock, identity = connect(address, asking(contexts, ADMIN_ALPN), connect_s, roles)
    with sock:
        if identity.role not in roles:
            raise PeerError(f"{identity.name!r} is not a node")
        now_s = time.monotonic()
        try:
            send_all(sock, json.dumps(request).encode() + b"\n", now_s + _REQUEST_S)
            return receive_all(sock, _ANSWER_BYTES_MAX, now_s + answer_s)
        except TimeoutError:
            words = f"the answer was not complete after {answer_s:g} s"
            raise TimeoutError(words) from None


def _parsed(data: bytes, where: str) -> Fields:
    answer = decode_fields(data)
    if answer is None:
        raise _unreadable(where)
    return answer


def _unreadable(where: str) -> PeerError:
    return PeerError(f"the answer of {where} cannot be read; does it run another version?")


def _raise_if_error(answer: Fields) -> None:
    if "error" in answer:
        code, words = str(answer.get("code")), str(answer["error"])
        raise Misuse(words) if code == "misuse" else Refused(code, words)


def _where(address: Address) -> str:
    return f"{address[0]}:{address[1]}"

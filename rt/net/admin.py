"""Admin client: sends questions and requests for changes to a running node."""

import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from rt.amounts import duration_text
from rt.errors import SEALED, Misuse, PeerError, Refused, RtError, spoken
from rt.format.manifest import FILE_NAME, Rolled
from rt.inspect.history import Row, rolled_rows
from rt.net.addresses import Address, address_text
from rt.net.authority.identity import CertificateRole
from rt.net.awaited import awaiting
from rt.net.exchange import Fields, about, decode_fields, receive_all, send_all
from rt.net.persistent_connection import PersistentConnection
from rt.net.question import CONNECT_S, connect_about
from rt.net.tls import Contexts, peer_identity
from rt.position import Position
from rt.text import printable, time_text

ADMIN_ALPN: Final = "rt-admin/1"
END: Final = "end"  # asks where the merged log ends; mirrors answer it too
MOVED: Final = "moved"  # field of an answer: this cluster's log has ended, and goes on elsewhere
_REQUEST_S: Final = 10.0
_ANSWER_S: Final = 60.0  # 10 s for a decision, the rest for 256 MiB at 5 MiB/s
_ANSWER_BYTES_MAX: Final = 256 << 20  # the manifest of a million files
_ELECTION_S: Final = 8.0  # several elections with default timeouts
_ELECTION_POLL_S: Final = 0.2
_ADDRESSES_MAX: Final = 32  # addresses configured and learned
_PORT_DIGITS: Final = 5
_PORT_MAX: Final = 65535
_NUMBER_END: Final = 1 << 63
_ACTIVE_NUMBERS: Final = 7  # integers in a `Rolled` line; a digest and session names may follow

PASSING: Final = ("undecided", "busy")  # codes of refusals that end by themselves
_STREAM: Final = "stream"  # code: the node does not serve the stream; another may
# Codes of refusals after which to ask another node: it may lead, become the leader, serve the
# stream, or belong to the cluster that continues the log of a sealed one.
_ELSEWHERE: Final = ("not-leader", "stopping", SEALED, _STREAM)

Asking = Callable[[Address, Contexts, Fields], Fields]

_log = logging.getLogger(__name__)


class NoLeader(RtError):  # noqa: N818
    """Nodes answered, but no node that can be reached is the leader."""


@contextmanager
def reading_answers() -> Iterator[None]:
    """Turn errors while reading a node's answer into `PeerError`, because the node is at fault."""
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
        address: the address of the node.
        contexts: our certificate and the authorities we trust.
        request: the request's fields.
        roles: the roles that may answer.
        answer_s: how long the answer may take.

    Raises:
        Refused: the node refuses and says why; `not-leader` names the node that leads, `stream`
            means that it does not serve the stream that the contexts name.
        Misuse: the node does not accept the request as valid.
        OSError: the node cannot be reached, or the answer is not complete after `answer_s`.
        PeerError: the answer cannot be read.
    """
    answer = _exchange(address, contexts, request, roles, answer_s)[1]
    return _parsed(answer, address_text(address), contexts)


def ask_named(
    address: Address, contexts: Contexts, request: Fields, answer_s: float
) -> tuple[str, Fields]:
    """Ask a node, as `ask` does; return the name in the node's certificate, and the answer."""
    name, answer = _exchange(address, contexts, request, answer_s=answer_s)
    return name, _parsed(answer, address_text(address), contexts)


def member_addresses(address: Address, contexts: Contexts, asking: Asking = ask) -> list[Address]:
    """Return the addresses of the members that a node names; none if it does not answer."""
    try:
        members = asking(address, contexts, {"do": "members"}).get("members")
    except (OSError, RtError):
        return []  # the node is gone again, or may not answer us
    found = []
    for each in members if isinstance(members, list) else []:
        host, _, port = str(each.get("address") if isinstance(each, dict) else "").rpartition(":")
        number = int(port) if port.isdecimal() and len(port) <= _PORT_DIGITS else 0
        if host and 0 < number <= _PORT_MAX:
            found.append((host, number))
    return found


def ask_any(
    addresses: Sequence[Address],
    contexts: Contexts,
    request: Fields,
    *,
    election_s: float = _ELECTION_S,
    asking: Asking = ask,
) -> Fields:
    """Ask the nodes in turn until one answers; only the leader answers a request for a change.

    Args:
        addresses: the nodes' addresses; the first is asked first.
        contexts: our certificate and the authorities we trust.
        request: what to ask.
        election_s: how long to keep asking while no node leads, for example because the leader was
            just stopped.
        asking: sends a request to one node.

    Raises:
        Refused: a node refused for a reason other than not being the leader or stopping.
        NoLeader: the nodes that answer have no leader.
        RtError: no node answers.
    """
    client = AdminClient(addresses, contexts, asking=asking)
    end_s, has_said = time.monotonic() + election_s, False
    while True:
        try:
            return client.ask(request)
        except NoLeader:
            if time.monotonic() > end_s:
                raise
        if not has_said:
            words = "no node leads yet; asking again for up to %s"
            _log.warning(words, duration_text(election_s))
        has_said = True
        time.sleep(_ELECTION_POLL_S)


class AdminClient:
    """Sends requests to the leader, and remembers which node leads.

    Threads: one at a time may use it.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        contexts: Contexts,
        *,
        keep: bool = False,
        asking: Asking = ask,
        known: Callable[[], Sequence[Address]] = tuple,
    ) -> None:
        """Prepare; the first request connects.

        Args:
            addresses: The nodes' addresses; the first is asked first.
            contexts: Our certificate and the authorities we trust.
            keep: Whether to use one connection for all requests, until `close`.
            asking: sends a request to one node, unless a connection is kept.
            known: returns further addresses to ask; called before each request.
        """
        self._asking, self._known = asking, known
        self._addresses = list(addresses)
        self._contexts = contexts
        self._place = 0  # index of the node to ask first
        self._kept = PersistentConnection(contexts, ADMIN_ALPN) if keep else None

    def ask(self, request: Fields) -> Fields:
        """Ask the node that answered last, then the others in turn; errors as for `ask_any`.

        A node that is not the leader names the members, so a leader is found even if the
        configuration does not have its address yet.
        """
        self._add(self._known())
        reasons, codes, left = [], set(), len(self._addresses)
        while left:
            address = self._addresses[self._place]
            try:
                return self._ask(address, request)
            except Refused as error:
                if error.code not in _ELSEWHERE:
                    raise
                reasons.append(str(error))
                codes.add(error.code)
                left += self._learn(address) if error.code != _STREAM else 0
            except (OSError, PeerError) as error:
                reasons.append(f"{address_text(address)}: {spoken(error)}")
            self._place = (self._place + 1) % len(self._addresses)
            left -= 1
        raise _none_accepted(codes, "; ".join(dict.fromkeys(reasons)))

    def close(self) -> None:
        """Close the connection; a later request dials again. Idempotent."""
        if self._kept is not None:
            self._kept.close()

    def _ask(self, address: Address, request: Fields) -> Fields:
        if self._kept is None:
            return self._asking(address, self._contexts, request)
        answer = self._kept.exchange(address, carried(self._contexts, request))
        return _parsed(answer, address_text(address), self._contexts)

    def _learn(self, address: Address) -> int:
        """Add the member addresses that a node names; return how many were new."""
        return self._add(member_addresses(address, self._contexts, self._asking))

    def _add(self, addresses: Sequence[Address]) -> int:
        before = len(self._addresses)
        for each in addresses:
            if each not in self._addresses and len(self._addresses) < _ADDRESSES_MAX:
                self._addresses.append(each)
        return len(self._addresses) - before


class NodeHistory(NamedTuple):
    """The history of a node's merged log.

    Attributes:
        directory: the directory of the log, on the node.
        rows: one for each file that the log ever had.
        offloaded: where copies of its files are.
        as_of: how recent the history is, as a sentence.
        is_latest: whether it includes all that any node had merged at the time of the question.
    """

    directory: str
    rows: list[Row]
    offloaded: Fields
    as_of: str
    is_latest: bool


def ask_history(address: Address, contexts: Contexts) -> NodeHistory:
    """Return the history of a node's merged log; without a majority, only what the node itself has.

    Raises:
        The errors of `ask`, and CorruptLog: The node's manifest is damaged.
    """
    request: Fields = {"do": "log-history"}
    try:
        answer = _exchange(address, contexts, request | {"latest": True})[1]
        return parse_history(answer, address_text(address), contexts)
    except Refused as error:
        if error.code not in (*_ELSEWHERE, *PASSING):
            raise
        _log.debug("%s does not answer for the latest: %s", address_text(address), error)
    answer = _exchange(address, contexts, request)[1]
    return parse_history(answer, address_text(address), contexts)


def parse_history(answer: bytes, where: str, contexts: Contexts | None = None) -> NodeHistory:
    """Parse a node's answer to `log-history`; errors as for `ask_history`.

    Args:
        answer: a line of JSON, then the bytes of the node's manifest.
        where: the node's address, for messages.
        contexts: if the answer says that one log continues another, these contexts record it.
    """
    line, _, data = answer.partition(b"\n")
    head = _parsed(line, where, contexts)
    if len(data) != head.get("bytes"):
        raise PeerError(f"{where} hung up in the middle of its history")
    directory, copies = str(head.get("directory")), head.get("offloaded") or {}
    if not isinstance(copies, dict):
        raise _unreadable(where)
    rows = rolled_rows(data, f"{directory}/{FILE_NAME}")
    if head.get("active"):
        active = Row(_active(head["active"], where), is_active=True)
        rows += [active] if not rows or active.first > rows[-1].first else []
    is_latest = head.get("latest") is True
    return NodeHistory(
        directory, rows, dict(copies), _as_of(head, where, is_latest=is_latest), is_latest
    )


def _as_of(head: Fields, where: str, *, is_latest: bool) -> str:
    with reading_answers():
        at = f"as of {time_text(int(head.get('as_of_ns') or time.time_ns()))}"
        end = f", up to {Position.parse(head['end'])}" if "end" in head else ""
    what = "all that was merged by then" if is_latest else f"what {where} has, which may lag behind"
    return f"{at}{end}: {what}"


def _active(facts: Any, where: str) -> Rolled:
    """Check what an answer says about the log's active file; return that as a manifest line."""
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
) -> tuple[str, bytes]:
    connect_s = min(CONNECT_S, answer_s)
    with awaiting(address), connect_about(address, contexts, ADMIN_ALPN, roles, connect_s) as sock:
        now_s = time.monotonic()
        try:
            request = carried(contexts, request)
            line = json.dumps(about(contexts.stream, request)).encode() + b"\n"
            send_all(sock, line, now_s + _REQUEST_S)
            name = peer_identity(sock).name
            return name, receive_all(sock, _ANSWER_BYTES_MAX, now_s + answer_s)
        except TimeoutError:
            words = f"the answer was not complete after {duration_text(answer_s)}"
            raise TimeoutError(words) from None


def carried(contexts: Contexts, request: Fields) -> Fields:
    """Return a request with the contexts' latest statement added, if there is one.

    The statement says which log continues another.
    """
    return request if contexts.successions is None else contexts.successions.carried(request)


def _parsed(data: bytes, where: str, contexts: Contexts | None = None) -> Fields:
    """Return a decoded answer; raise the error that it reports, or `PeerError` if it is unreadable.

    The contexts record which log continues another, if the answer says so.
    """
    answer = decode_fields(data)
    if answer is None:
        raise _unreadable(where)
    if contexts is not None and contexts.successions is not None:
        contexts.successions.hear_in(answer)
    if "error" in answer:
        code, words = str(answer.get("code")), str(answer["error"])
        raise Misuse(words) if code == "misuse" else Refused(code, words)
    if MOVED in answer:
        _log.warning("%s: %s", where, printable(str(answer[MOVED])))
    return answer


def _unreadable(where: str) -> PeerError:
    return PeerError(f"the answer of {where} cannot be read; does it run another version?")


def _none_accepted(codes: set[str], reasons: str) -> RtError:
    """Return the error for a request that no node accepted, given the codes of the refusals."""
    words = f"no node accepted the request: {reasons}"
    if SEALED in codes:
        return Refused(SEALED, words)
    if codes == {_STREAM}:
        return Refused(_STREAM, words)
    return NoLeader(words) if codes else RtError(words)

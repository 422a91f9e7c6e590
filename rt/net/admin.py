"""Admin: asks a running node what an operator wants to know, or to have done."""

import json
import ssl
from collections.abc import Sequence
from typing import Any, Final

from rt.errors import Misuse, PeerError, Refused, RtError, spoken
from rt.format.manifest import FILE_NAME, Rolled
from rt.inspect.history import Row, rolled_rows
from rt.net.tls import Contexts, connect, offering
from rt.position import Position

ADMIN_ALPN: Final = "rt-admin/1"
_CONNECT_S: Final = 3.0
_ANSWER_S: Final = 30.0
_ANSWER_BYTES_MAX: Final = 256 << 20  # a manifest of a million files
_READ_BYTES: Final = 1 << 20

Address = tuple[str, int]
Fields = dict[str, Any]


def ask(address: Address, contexts: Contexts, request: Fields) -> Fields:
    """Ask a node one thing.

    Raises:
        Refused: it will not, and says why; `not-leader` names who would.
        Misuse: the request is none.
        OSError: it does not answer.
        PeerError: what it answers cannot be read.
    """
    answer = _parsed(_exchange(address, contexts, request), address)
    _raise_if_error(answer)
    return answer


def ask_any(addresses: Sequence[Address], contexts: Contexts, request: Fields) -> Fields:
    """Ask the nodes in turn, until one does it: the leader, where it takes one.

    Raises:
        Refused: the first node that gave a reason other than that another leads.
        RtError: no node answers, or none leads.
    """
    reasons = []
    for address in addresses:
        try:
            return ask(address, contexts, request)
        except Refused as error:
            if error.code != "not-leader":
                raise
            reasons.append(str(error))
        except (OSError, PeerError) as error:
            reasons.append(f"{address[0]}:{address[1]}: {spoken(error)}")
    raise RtError(f"no node does it: {'; '.join(dict.fromkeys(reasons))}")


def ask_history(address: Address, contexts: Contexts) -> tuple[str, list[Row], Fields]:
    """Return a node's merged log: its directory, a row for each file it ever had, its copies.

    Raises:
        As `ask`, and CorruptLog: the node's manifest is damaged.
    """
    answer = _exchange(address, contexts, {"do": "log-history"})
    line, _, data = answer.partition(b"\n")
    head = _parsed(line, address)
    _raise_if_error(head)
    if len(data) != head["bytes"]:
        raise PeerError(f"{address[0]}:{address[1]} hung up in the middle of its history")
    directory = str(head["directory"])
    rows = rolled_rows(data, f"{directory}/{FILE_NAME}")
    if head["active"]:
        start, *facts = head["active"]
        active = Row(Rolled(Position(start), *facts), is_active=True)
        rows += [active] if not rows or active.first > rows[-1].first else []
    return directory, rows, dict(head.get("offloaded") or {})


def _exchange(address: Address, contexts: Contexts, request: Fields) -> bytes:
    sock, identity = connect(address, offering(contexts.current(), ADMIN_ALPN), _CONNECT_S)
    with sock:
        if not identity.is_node:
            raise PeerError(f"{identity.name!r} is no node")
        sock.settimeout(_ANSWER_S)
        sock.sendall(json.dumps(request).encode() + b"\n")
        return _read_all(sock)


def _read_all(sock: ssl.SSLSocket) -> bytes:
    data = bytearray()
    while part := sock.recv(_READ_BYTES):
        data += part
        if len(data) > _ANSWER_BYTES_MAX:
            raise PeerError("a node's answer does not end")
    return bytes(data)


def _parsed(data: bytes, address: Address) -> Fields:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise PeerError(f"{address[0]}:{address[1]} answers what cannot be read")
    return answer


def _raise_if_error(answer: Fields) -> None:
    if "error" in answer:
        code, words = str(answer.get("code")), str(answer["error"])
        raise Misuse(words) if code == "misuse" else Refused(code, words)

"""NodeAdmin: what an operator may ask of a running node, over its own mutual TLS."""

import json
import os
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final

from archiver.lease import LEASES_MAX, new_lease
from archiver.policy import policy_of
from rt.errors import Misuse, Refused
from rt.format.manifest import FILE_NAME
from rt.inspect.history import active
from rt.net.exchange import Fields, decode_fields, receive_line, send_all
from rt.net.identity import PeerIdentity
from rt.node.retention import (
    LEASE_NOTE,
    OFFLOAD_NOTE,
    POLICY_NOTE,
    Retention,
    offload_lease,
)
from sequencer.instruction import Instruction, Note, Roll
from sequencer.member import Member

REQUEST_BYTES_MAX: Final = 16 << 10
_REQUEST_S: Final = 10.0  # for all of a request to come
_ANSWER_S: Final = 50.0  # for all of an answer to be taken; the client waits for a minute
_DECIDED_S: Final = 10.0  # an instruction is decided in milliseconds, or there is no quorum
_POLL_S: Final = 0.01
_TIME_END_NS: Final = 1 << 63


class NodeAdmin:
    """Answers one request a connection: a line of JSON, and an answer that ends it.

    Who may pull the stream may look, and hold files by a lease; what changes the stream for all
    is for those with a certificate of a node. Only the leader orders; another node says who.
    """

    def __init__(self, stream: str, member: Member, archiver: Retention) -> None:
        """Stand ready.

        Args:
            stream: that this node serves.
            member: of this node.
            archiver: of this node.
        """
        self._stream = stream
        self._member = member
        self._archiver = archiver
        self._lock = threading.RLock()  # one change at a time, so that each sees its own
        self._does: dict[str, tuple[Callable[[Fields, PeerIdentity], Fields], bool]] = {
            "policy": (self._policy, False),
            "set-policy": (self._set_policy, True),
            "plan": (self._plan, False),
            "roll": (self._roll, True),
            "lease": (self._lease, False),
            "release": (self._release, False),
            "offloaded": (self._offloaded, True),
        }

    def serve(self, sock: ssl.SSLSocket, identity: PeerIdentity) -> None:
        """Take one request and answer it; for the thread of an accepted connection."""
        with sock:
            line = receive_line(sock, REQUEST_BYTES_MAX, time.monotonic() + _REQUEST_S)
            send_all(sock, self.answer(line, identity), time.monotonic() + _ANSWER_S)

    def answer(self, line: bytes, identity: PeerIdentity) -> bytes:
        """Return the answer to the request of a peer of this identity."""
        try:
            request = _parsed(line)
            if request.get("do") == "log-history":
                self._demand(identity, changes=False)
                return self._history()
            answer = self._answer(request, identity)
        except (Refused, Misuse) as error:
            code = error.code if isinstance(error, Refused) else "misuse"
            answer = {"error": str(error), "code": code}
        return json.dumps(answer).encode()

    def _answer(self, request: Fields, identity: PeerIdentity) -> Fields:
        do, changes = self._does.get(str(request.get("do")), (None, False))
        if do is None:
            raise Misuse(f"a node does one of {', '.join(sorted(self._does))}, log-history")
        self._demand(identity, changes=changes)
        return do(request, identity)

    def _demand(self, identity: PeerIdentity, *, changes: bool) -> None:
        if not identity.may_pull(self._stream) or (changes and not identity.is_node):
            needed = "a node" if changes else "a subscriber that may pull this stream, or a node"
            raise Refused("role", f"{identity.name!r} may not ask this; {needed} may")

    def _policy(self, _request: Fields, _identity: PeerIdentity) -> Fields:
        ledger, archiver = self._member.executor.ledger, self._archiver
        return {
            "policy": json.loads(archiver.policy.text()),
            "is_default": POLICY_NOTE not in ledger.notes,
            "archived_to": str(ledger.archived_to),
            "leases": [json.loads(lease.text()) for lease in archiver.leases],
            "disks": [
                {"node": disk.node, "total": disk.total, "used": disk.used,
                 "percent": round(disk.percent, 1)}
                for disk in archiver.disks()
            ],
        }  # fmt: skip

    def _set_policy(self, request: Fields, identity: PeerIdentity) -> Fields:
        self._note(POLICY_NOTE, policy_of(request.get("policy")).text())
        return self._policy(request, identity)

    def _plan(self, request: Fields, _identity: PeerIdentity) -> Fields:
        at_ns = request.get("at_ns", self._archiver.now_ns)
        if type(at_ns) is not int or not 0 <= at_ns < _TIME_END_NS:
            raise Misuse("at_ns is a time in ns since the epoch")
        files = [each._asdict() for each in self._archiver.plan(at_ns)]
        return {**self._policy(request, _identity), "at_ns": at_ns, "files": files}

    def _roll(self, _request: Fields, _identity: PeerIdentity) -> Fields:
        member = self._member
        if member.engine.leads:
            # a publisher may have been told by another node of what is about to be executed here
            self._await(lambda: member.executor.ledger.end.offset > 0 or not member.is_executing)
        before = member.executor.ledger.end
        if before.offset or not member.engine.leads:  # which refuses it, and names who does
            self._decide(Roll(time.time_ns()), lambda: self._ended(before.file))
        return {"rolled": before.file_name if before.offset else None}

    def _ended(self, file: int) -> bool:
        return self._member.executor.ledger.end.file > file

    def _lease(self, request: Fields, identity: PeerIdentity) -> Fields:
        lease = new_lease({**request, "holder": identity.name}, self._archiver.now_ns)
        with self._lock:
            held = {each.holder for each in self._archiver.leases} | {lease.holder}
            if len(held) > LEASES_MAX:
                words = f"{LEASES_MAX} readers hold leases already; that is the most"
                raise Refused("leases", words)
            self._note(LEASE_NOTE + lease.holder, lease.text())
        archived_to = self._member.executor.ledger.archived_to
        return {**json.loads(lease.text()), "there_from": str(max(lease.start, archived_to))}

    def _release(self, request: Fields, identity: PeerIdentity) -> Fields:
        holder = str(request.get("holder", identity.name))
        if holder != identity.name and not identity.is_node:
            raise Refused("role", f"{identity.name!r} may not release the lease of another")
        self._note(LEASE_NOTE + holder, "")
        return {"released": holder}

    def _offloaded(self, request: Fields, _identity: PeerIdentity) -> Fields:
        text = str(request.get("text", ""))
        if text:
            offload_lease(text)
        self._note(OFFLOAD_NOTE, text)
        return {"offloaded": text}

    def _note(self, name: str, text: str) -> None:
        wanted = text or None
        self._decide(
            Note(time.time_ns(), name, text),
            lambda: self._member.executor.ledger.notes.get(name) == wanted,
        )

    def _decide(self, instruction: Instruction, is_done: Callable[[], bool]) -> None:
        with self._lock:
            self._member.order(instruction)
            self._await(is_done)

    def _await(self, is_done: Callable[[], bool]) -> None:
        end_s = time.monotonic() + _DECIDED_S
        while not is_done():
            if time.monotonic() > end_s:
                words = "no majority decided it in time; it may yet come: look, and ask again"
                raise Refused("undecided", words)
            time.sleep(_POLL_S)

    def _history(self) -> bytes:
        """Return the manifest as it is: the client has the time to read it, a node does not."""
        log = self._member.executor.appender
        # The end first: a file that is rolled meanwhile is then in both, and the client drops one.
        # The other way round it would be in neither.
        end, facts = log.end, log.facts
        line = active(end.file, facts, end.offset).line if log.is_open else None
        with open(os.path.join(log.directory, FILE_NAME), "rb") as file:
            data = file.read()
        head = {"directory": log.directory, "node": self._member.name, "bytes": len(data)}
        head["offloaded"] = json.loads(self._member.executor.ledger.notes.get(OFFLOAD_NOTE, "{}"))
        return json.dumps({**head, "active": line}).encode() + b"\n" + data


def _parsed(line: bytes) -> Fields:
    request = decode_fields(line)
    if request is None:
        raise Misuse("a request is a JSON object")
    return request

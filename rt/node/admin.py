"""NodeAdmin: what an operator may ask of a running node, over its own mutual TLS."""

import json
import os
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Final, Protocol, TypeVar

from archiver.decide import demand_disks
from archiver.lease import LEASES_MAX, new_lease
from archiver.policy import policy_of
from rt.errors import Misuse, Refused
from rt.format.manifest import FILE_NAME
from rt.inspect.history import active
from rt.log.disk import OsDisk
from rt.names import shown
from rt.net.admin import END
from rt.net.exchange import (
    Fields,
    address_of,
    decode_fields,
    decode_request,
    receive_line,
    receive_line_or_end,
    send_all,
)
from rt.net.grants import GRANTS_NAME
from rt.net.identity import PeerIdentity
from rt.node.audit import AuditLog
from rt.node.cursors import NodeCursors
from rt.node.groups import NodeGroups
from rt.node.latest import await_latest
from rt.node.member_admin import MemberAdmin
from rt.node.quota_admin import QuotaAdmin
from rt.node.retention import (
    LEASE_NOTE,
    OFFLOAD_NOTE,
    POLICY_NOTE,
    Retention,
    leases_of_notes,
    offload_lease,
    policy_of_notes,
)
from rt.node.session_admin import SessionAdmin
from rt.node.session_copies import SessionCopies
from rt.node.session_policy import SESSIONS_NOTE
from rt.node.settings import NodeSettings
from rt.node.verb import Verb
from rt.node.view import NodeView
from rt.position import Position
from sequencer.instruction import Instruction, Note, Roll
from sequencer.member import Member

REQUEST_BYTES_MAX: Final = 16 << 10
_REQUEST_S: Final = 10.0  # for all of a request to come
_IDLE_S: Final = 60.0  # a kept connection is ended after this long without a request
_ANSWER_S: Final = 50.0  # for all of an answer to be taken; the client waits for a minute
_DECIDED_S: Final = 10.0  # an instruction is decided in milliseconds, or there is no quorum
_UNDECIDED: Final = "no majority decided it in time; it may yet come: look, and ask again"
_SETTLED_S: Final = 30.0  # of a snapshot every few seconds, which a majority has to take
_POLL_FIRST_S, _POLL_S = 0.001, 0.01
_TIME_END_NS: Final = 1 << 63

Answer = TypeVar("Answer")


class Sequencing(Protocol):
    """A node's sequencing, for other threads; see `rt.node.sequencer.NodeSequencer`."""

    @property
    def view(self) -> NodeView:
        """The state after the last step."""

    def order(self, instruction: Instruction) -> None:
        """Propose an instruction soon; `Refused` unless this node leads."""

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """Answer a question between two steps, after everything that has arrived by now."""


class NodeAdmin:
    """Answers requests: each is a line of JSON, and its answer ends the connection.

    Where the request says `keep`, the answer ends with a newline instead, and another may follow.

    A subscriber of the stream may look and, if it is granted that, hold files by a lease in its
    own name. A change that concerns everyone takes the certificate of an operator, or of a node of
    the cluster. Only the leader acts; other nodes name it. Any node answers a question, as far as
    it has come; one that says `latest` is answered by the leader, once a majority has confirmed
    that it leads, and it has executed all that was decided before. Every change, done or refused,
    is a line of the audit log.

    Threads: any connection's. `_lock` admits one at a time that writes a note, whatever it held: a
        lease sees the others, and each sees its own text before another is written. A change that
        is compared and set does without. `_member`, but for its `reads`, and `_archiver` are used
        only inside `_sequencer.ask`.
    """

    def __init__(
        self,
        settings: NodeSettings,
        sequencer: Sequencing,
        member: Member,
        archiver: Retention,
        audit: AuditLog | None = None,
        *,
        copies: SessionCopies | None = None,
        hold_s: Callable[[PeerIdentity], float] = lambda _identity: 0.0,
        is_own: bool = True,
        served: Callable[[], Position] | None = None,
    ) -> None:
        """Prepare.

        Args:
            settings: of this node.
            sequencer: takes orders, and answers questions between two steps.
            member: of this node.
            archiver: of this node.
            audit: records changes; None to record nothing.
            copies: of sessions, on this node; None to answer nothing about sessions.
            hold_s: counts a request on a kept connection; returns how long it has to wait.
            is_own: whether publishers push to it that are granted no stream by name.
            served: where the merged log ends that pullers get here; the agreed end if not given.
        """
        self._served = served
        self._audit = audit
        self._settings = settings
        self._sequencer = sequencer
        self._member = member
        self._archiver = archiver
        self._hold_s = hold_s
        self._is_own = is_own
        self._lock = threading.RLock()
        self._verbs: dict[str, Verb] = {
            "policy": Verb(self._policy),
            "set-policy": Verb(self._set_policy, changes=True, operators_only=True),
            "plan": Verb(self._plan),
            END: Verb(self._end),
            "roll": Verb(self._roll, changes=True, operators_only=True),
            "lease": Verb(self._lease, changes=True, leases=True),
            "release": Verb(self._release, changes=True, leases=True),
            "offloaded": Verb(self._offloaded, changes=True, operators_only=True),
            **MemberAdmin(settings, sequencer, member, archiver).verbs,
            **self._cursor_verbs(),
            **self._group_verbs(),
            **QuotaAdmin(lambda: self._sequencer.view, self._decide).verbs,
        }
        if copies is not None:
            sessions = SessionAdmin(
                sequencer, member, copies, decide=self._decide, settle=self._settle,
                now_ns=lambda: archiver.now_ns,
            )  # fmt: skip
            self._verbs |= _verbs_of(sessions, partial(self._set_session_policy, sessions))

    def _cursor_verbs(self) -> "dict[str, Verb]":
        """Return what is asked of cursors; acknowledgements come by the second: not recorded."""
        cursors = NodeCursors(
            lambda: self._sequencer.view, self._decide, lambda: self._settings.stream,
            lambda: self._member.executor.appender.directory,
        )  # fmt: skip
        return {
            "cursors": Verb(cursors.show),
            "cursor-ack": Verb(cursors.ack),
            "cursor-open": Verb(cursors.open, changes=True),
            "cursor-reset": Verb(cursors.reset, changes=True),
            "cursor-forget": Verb(cursors.forget, changes=True),
        }

    def _group_verbs(self) -> "dict[str, Verb]":
        """Return what is asked of groups; what members do comes by the second: not recorded."""
        groups = NodeGroups(
            lambda: self._sequencer.view, self._decide,
            lambda: self._member.executor.appender.directory,
            lambda identity: identity.may_lease(self._settings.stream),
        )  # fmt: skip
        return {
            "groups": Verb(groups.show),
            "group-join": Verb(groups.join, changes=True),
            "group-work": Verb(groups.work),
            "group-reset": Verb(groups.reset, changes=True),
            "group-forget": Verb(groups.forget, changes=True),
        }

    def serve(self, sock: ssl.SSLSocket, identity: PeerIdentity) -> None:
        """Take requests and answer them; for the thread of an accepted connection."""
        with sock:
            where = address_of(sock)
            line = receive_line(sock, REQUEST_BYTES_MAX, time.monotonic() + _REQUEST_S)
            while line:
                end = b"\n" if _keeps(line) else b""
                answer = self.answer(line, identity, where) + end
                send_all(sock, answer, time.monotonic() + _ANSWER_S)
                line = self._next_line(sock, identity) if end else b""

    def _next_line(self, sock: ssl.SSLSocket, identity: PeerIdentity) -> bytes:
        """Return the next request on a kept connection; empty once it has ended, or was idle."""
        try:
            line = receive_line_or_end(sock, REQUEST_BYTES_MAX, time.monotonic() + _IDLE_S)
        except TimeoutError:
            return b""
        if line:
            time.sleep(self._hold_s(identity))
        return line

    def answer(self, line: bytes, identity: PeerIdentity, where: str = "") -> bytes:
        """Return the answer to the request of a peer of this identity at this address."""
        try:
            request = _parsed(line)
            if request.get("do") == "log-history":
                self._demand(identity)
                return self._history()
            answer = self._answer(request, identity, where)
        except (Refused, Misuse) as error:
            answer = {"error": str(error), "code": _code(error)}
        return json.dumps(answer).encode()

    def _answer(self, request: Fields, identity: PeerIdentity, where: str) -> Fields:
        verb = self._verbs.get(str(request.get("do")))
        if verb is None:
            raise Misuse(f"a node does one of {', '.join(sorted(self._verbs))}, log-history")
        if not verb.changes or self._audit is None:
            self._demand(identity, verb, request)
            if request.get("latest") is True:
                self._await_latest()
            return verb.do(request, identity)
        return self._audited(verb, request, identity, where, self._audit)

    def _audited(
        self, verb: "Verb", request: Fields, identity: PeerIdentity, where: str, audit: AuditLog
    ) -> Fields:
        """Carry out a change, and record it: one of the instructions `after` to `by` did it."""
        after = self._sequencer.view.executed
        record = partial(
            audit.record, request, identity.title, where, is_client=not identity.may_operate
        )
        try:
            self._demand(identity, verb, request)
            answer = verb.do(request, identity)
        except (Refused, Misuse) as error:
            record(_code(error), why=str(error))
            raise
        record("done", after=after, by_instruction=self._sequencer.view.executed)
        return answer

    def _demand(
        self, identity: PeerIdentity, verb: Verb | None = None, request: Fields | None = None
    ) -> None:
        session, stream = str((request or {}).get("session")), self._settings.stream
        if verb and verb.pushes:
            pushes = identity.may_push_to(stream, is_own=self._is_own)
            if identity.may_operate or (pushes and identity.may_push(session)):
                return
            needed = f"an operator, or a publisher that is granted session {shown(session)} here,"
        elif not identity.may_look(stream):
            needed = "a subscriber of this stream, an operator or a node"
        elif verb and verb.operators_only and not identity.may_operate:
            needed = "an operator or a node"
        elif verb and verb.leases and not identity.may_lease(stream):
            needed = f"an operator, a node or a subscriber with leases = true in {GRANTS_NAME}"
        else:
            return
        raise Refused("role", f"{identity.title} may not ask this; {needed} may")

    def _policy(self, _request: Fields, _identity: PeerIdentity) -> Fields:
        view, disks = self._sequencer.view, self._sequencer.ask(self._archiver.disks)
        return {
            "policy": json.loads(policy_of_notes(view.notes).text()),
            "is_default": POLICY_NOTE not in view.notes,
            "archived_to": str(view.archived_to),
            "leases": [json.loads(lease.text()) for lease in leases_of_notes(view.notes)],
            "disks": [
                {"node": disk.node, "total": disk.total, "used": disk.used,
                 "percent": round(disk.percent, 1)}
                for disk in disks
            ],
        }  # fmt: skip

    def _set_policy(self, request: Fields, identity: PeerIdentity) -> Fields:
        policy = policy_of(request.get("policy"))
        demand_disks(policy, self._sequencer.ask(self._archiver.disks))
        self._note(POLICY_NOTE, policy.text())
        return self._policy(request, identity)

    def _set_session_policy(self, sessions: SessionAdmin, request: Fields) -> Fields:
        self._note(SESSIONS_NOTE, sessions.policy_text(request))
        return sessions.policy(request)

    def _plan(self, request: Fields, _identity: PeerIdentity) -> Fields:
        at_ns = request["at_ns"] if "at_ns" in request else self._now_ns()
        if type(at_ns) is not int or not 0 <= at_ns < _TIME_END_NS:
            raise Misuse("at_ns is a time in ns since the epoch")
        files = self._sequencer.ask(lambda: self._archiver.plan(at_ns))
        rows = [each._asdict() for each in files]
        return {**self._policy(request, _identity), "at_ns": at_ns, "files": rows}

    def _end(self, request: Fields, _identity: PeerIdentity) -> Fields:
        """Say where the stream ends, if the request says `latest`; else, what is served here."""
        view = self._sequencer.view
        if request.get("latest") is not True and self._served is not None:
            return {"end": str(self._served())}
        return {"end": str(view.end), "number": view.number, "digest": view.digest.hex()}

    def _roll(self, _request: Fields, _identity: PeerIdentity) -> Fields:
        # Another node may have confirmed to a publisher what is about to be executed here.
        self._await_latest()
        before = self._sequencer.view.end
        if not before.offset:
            return {"rolled": None}
        wanted = Roll(time.time_ns())
        self._decide(wanted, lambda: self._sequencer.view.end.file > before.file)
        return {"rolled": before.file_name}

    def _await_latest(self) -> None:
        sequencer = self._sequencer
        await_latest(lambda: sequencer.view, sequencer.ask, self._member.reads, self._await)

    def _lease(self, request: Fields, identity: PeerIdentity) -> Fields:
        lease = new_lease({**request, "holder": identity.name}, self._now_ns())
        with self._lock:
            leases = leases_of_notes(self._sequencer.view.notes)
            held = {each.holder for each in leases} | {lease.holder}
            if len(held) > LEASES_MAX:
                words = f"{LEASES_MAX} readers hold leases already; that is the most"
                raise Refused("leases", words)
            self._note(LEASE_NOTE + lease.holder, lease.text())
        archived_to = self._sequencer.view.archived_to
        return {**json.loads(lease.text()), "there_from": str(max(lease.start, archived_to))}

    def _release(self, request: Fields, identity: PeerIdentity) -> Fields:
        holder = str(request.get("holder", identity.name))
        if holder != identity.name and not identity.may_operate:
            raise Refused("role", f"{identity.name!r} may not release the lease of another")
        self._note(LEASE_NOTE + holder, "")
        return {"released": holder}

    def _offloaded(self, request: Fields, _identity: PeerIdentity) -> Fields:
        text = str(request.get("text", ""))
        if text:
            offload_lease(text)
        self._note(OFFLOAD_NOTE, text)
        return {"offloaded": text}

    def _now_ns(self) -> int:
        """The time that retention uses."""
        return self._sequencer.ask(lambda: self._archiver.now_ns)

    def _note(self, name: str, text: str) -> None:
        wanted = text or None
        with self._lock:
            self._decide(
                Note(time.time_ns(), name, text),
                lambda: self._sequencer.view.notes.get(name) == wanted,
            )

    def _decide(self, instruction: Instruction, is_done: Callable[[], bool]) -> None:
        if is_done():  # as far as is known here: another leader may have changed it since
            self._await_latest()
        self._sequencer.order(instruction)
        self._await(is_done)

    def _settle(self, index: int) -> None:
        """Wait until a majority has durably what was merged up to an instruction."""
        self._await(
            lambda: self._sequencer.ask(lambda: self._archiver.settled_index) >= index,
            _SETTLED_S, "no majority has saved its state yet; ask again in a while",
        )  # fmt: skip

    def _await(
        self, is_done: Callable[[], bool], timeout_s: float = _DECIDED_S, words: str = _UNDECIDED
    ) -> None:
        end_s, pause_s = time.monotonic() + timeout_s, _POLL_FIRST_S
        while not is_done():
            if time.monotonic() > end_s:
                raise Refused("undecided", words)
            time.sleep(pause_s)
            pause_s = min(_POLL_S, 2 * pause_s)

    def _history(self) -> bytes:
        """Return the manifest as it is: the client has the time to read it, a node does not."""
        directory, line = self._sequencer.ask(self._active)
        # The end is read first: a file rolled since is then in both, and the client drops one.
        # The other way round it would be in neither.
        with closing(OsDisk().open_read(os.path.join(directory, FILE_NAME))) as file:
            data = file.pread(file.size(), 0)
        head = {"directory": directory, "node": self._settings.name, "bytes": len(data)}
        head["offloaded"] = json.loads(self._sequencer.view.notes.get(OFFLOAD_NOTE, "{}"))
        return json.dumps({**head, "active": line}).encode() + b"\n" + data

    def _active(self) -> tuple[str, object]:
        log = self._member.executor.appender
        line = active(log.end.file, log.facts, log.end.offset).line if log.is_open else None
        return log.directory, line


def _verbs_of(sessions: SessionAdmin, set_policy: Callable[[Fields], Fields]) -> dict[str, Verb]:
    """Return what may be asked about sessions."""

    def change(do: Callable[[Fields], Fields]) -> Verb:
        return Verb(lambda request, _identity: do(request), changes=True, operators_only=True)

    return {
        "sessions": Verb(lambda request, _identity: sessions.sessions(request)),
        "adopt-session": change(sessions.adopt),
        "reset-session": change(sessions.reset),
        "forget-session": change(sessions.forget),
        "take-session": Verb(sessions.take, changes=True, pushes=True),
        "session-policy": Verb(lambda request, _identity: sessions.policy(request)),
        "set-session-policy": change(set_policy),
    }


def _code(error: Refused | Misuse) -> str:
    return error.code if isinstance(error, Refused) else "misuse"


def _keeps(line: bytes) -> bool:
    """Whether the peer wants to make another request on this connection."""
    request = decode_fields(line) or {}
    return request.get("keep") is True and request.get("do") != "log-history"


def _parsed(line: bytes) -> Fields:
    request = decode_request(line)
    if request is None:
        raise Misuse("a request is a JSON object, of few levels")
    return request

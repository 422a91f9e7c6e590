"""NodeAdmin: answers operators' and clients' requests to a running node, over mutual TLS."""

import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from itertools import count
from typing import Final

from archiver.decide import DiskReport, demand_disks
from archiver.lease import LEASES_MAX, Lease, new_lease
from archiver.policy import policy_of
from replicator.serve.server import Server
from rt.errors import Misuse, Refused
from rt.format.manifest import FILE_NAME
from rt.inspect.history import active
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.files.listing import manifest_size
from rt.masking import demand_no_secret, masked
from rt.names import shown
from rt.net.admin import ADMIN_ALPN, END, MOVED
from rt.net.authority.grants import GRANTS_NAME
from rt.net.authority.identity import CertificateRole, PeerIdentity
from rt.net.authority.successions import FIELD, ended
from rt.net.exchange import (
    Fields,
    address_of,
    decode_fields,
    decode_request,
    position_in,
    receive_line,
    receive_line_or_end,
    send_all,
)
from rt.net.fencing import SUCCEED
from rt.node.admin.answers import AnswerMeter, SharedAnswers, encoded
from rt.node.admin.asked_stream import demand_log, demand_stream
from rt.node.admin.audit import AuditLog
from rt.node.admin.level_admin import LevelAdmin
from rt.node.admin.member_admin import MemberAdmin
from rt.node.admin.node_successions import NodeSuccessions
from rt.node.admin.quota_admin import QuotaAdmin
from rt.node.admin.session_admin import SessionAdmin
from rt.node.admin.standby_admin import StandbyAdmin
from rt.node.admin.verb import CHANGE, Verb
from rt.node.agree.latest import confirmed, decided, latest
from rt.node.agree.level_gate import LevelGate
from rt.node.agree.sequencer import NodeSequencer
from rt.node.agree.steps import Ask, Need, Order, Steps, Until, perform, wait_until
from rt.node.agree.view import NodeView
from rt.node.ingest.inboxes import Inboxes
from rt.node.readers.changed_notes import ChangedNotes
from rt.node.readers.claims_heard import ClaimsHeard
from rt.node.readers.cursor_lag import bytes_between
from rt.node.readers.cursors import NodeCursors
from rt.node.readers.groups import NodeGroups
from rt.node.retain.retention import (
    LEASE_NOTE,
    OFFLOAD_NOTE,
    POLICY_NOTE,
    Retention,
    leases_of_notes,
    offload_lease,
    policy_of_notes,
)
from rt.node.settings.node import NodeSettings
from rt.position import Position
from sequencer.ledger.format_level import COUNTING, demand_level
from sequencer.ledger.instruction import Instruction, Note, Roll
from sequencer.ledger.seal import demand_unsealed, moved_away
from sequencer.member import Member

REQUEST_BYTES_MAX: Final = 16 << 10
_SETTLED_S: Final = 30.0  # for a majority's snapshots, taken every few seconds
_TIME_END_NS: Final = 1 << 63
_PLANNED_S: Final = 1.0  # what a plan needs is read between two steps, which it delays
_HISTORY: Final = Verb(lambda _request, _identity: {})  # its answer is not an object
_ABOUT_THE_END: Final = ("seal", "unseal", SUCCEED)  # served even if the log continues elsewhere
_NOTHING: Final = nullcontext()


@dataclass(frozen=True, slots=True)
class AdminTimes:
    """AdminTimes: how long a peer may take for each step, in seconds.

    Attributes:
        request_s: for sending a whole request.
        idle_s: for sending the next request on a kept connection.
        answer_s: for receiving a whole answer; the client waits for a minute.
    """

    request_s: float = 10.0
    idle_s: float = 60.0
    answer_s: float = 50.0


class NodeAdmin:
    """NodeAdmin: answers requests; each is a line of JSON, and its answer ends the connection.

    The request or its connection (`rt-admin/1/STREAM`) names the stream. A request that names
    another stream is refused, and so is a change that names none; a question may omit the stream,
    as clients of earlier versions do. With `keep`, the answer ends with a newline, and another
    request may follow.

    A subscriber of the stream may ask questions and, if granted leases, hold files by a lease in
    its own name. Changes that concern everyone need the certificate of an operator, or of a node of
    the cluster. Only the leader makes changes; other nodes name it. Any node answers a question
    from its own state; with `latest`, the leader answers, after a majority has confirmed that it
    leads and it has executed all that was decided before. Every change, done or refused, is
    recorded in the audit log.

    Once another cluster continues the log, that cluster has the latest state. Then this node
    refuses clients, and operators who ask for the latest or for a change. All other answers say
    where the log continues.

    Threads: any connection's thread may call it. `_lock` is held while a note is written
        unconditionally, so that a new lease is checked against all others, and is visible before
        the next one is written. It is also held while a group is changed, so that its members'
        compare-and-sets do not make each other fail. Other compare-and-sets do not need the lock.
        Any thread sets `_changes`. `_member`, except its `reads`, and `_archiver` are used only
        inside `_sequencer.ask`.
    """

    def __init__(
        self,
        settings: NodeSettings,
        sequencer: NodeSequencer,
        member: Member,
        archiver: Retention,
        audit: AuditLog | None = None,
        *,
        copies: Inboxes | None = None,
        server: Callable[[], Server] | None = None,
        is_own: bool = True,
        votes: Callable[[str], bool] = lambda _name: True,
        served: Callable[[], Position] | None = None,
        gate: LevelGate | None = None,
        successions: NodeSuccessions | None = None,
        times: AdminTimes = AdminTimes(),
        wait: Callable[[Until], None] = wait_until,
    ) -> None:
        """Prepare.

        Args:
            settings: this node's settings.
            sequencer: takes orders, and answers questions between two steps.
            member: this node's member.
            archiver: this node's retention.
            audit: records changes; None to record nothing.
            copies: this node's copies of sessions; None to answer nothing about sessions.
            server: returns the server whose admission charges peers for requests; None to charge
                nothing.
            is_own: whether publishers whose grants name no stream may push here.
            votes: returns whether a node is a voting member.
            served: returns the end of the log served to pullers here; None for the agreed end.
            gate: knows the cluster's format level; None to answer nothing about it.
            successions: sends and receives statements that one log continues another; None to do
                neither.
            times: how long peers may take.
            wait: waits until a condition holds; raises `Refused` if it takes too long.
        """
        self._votes, self._served, self._times, self._wait = votes, served, times, wait
        self._audit, self._settings, self._sequencer = audit, settings, sequencer
        self._view: Callable[[], NodeView] = lambda: sequencer.view
        self._member, self._archiver = member, archiver
        self._server, self._successions = server, successions
        self._meter = AnswerMeter(server)
        self._shared, self._prospects = SharedAnswers(), SharedAnswers()
        self._numbers = count(1)
        self._hear_standby: Callable[[PeerIdentity, Position], None] = lambda _peer, _position: None
        self._changes = 0  # number of the last completed change; never repeats
        self._is_own, self._lock = is_own, threading.RLock()
        self.verbs: dict[str, Verb] = {
            "policy": Verb(self._policy, shared=()),
            "set-policy": CHANGE(self._set_policy),
            "plan": Verb(self._plan, shared=("at_ns",)),
            END: Verb(self._end, may_follow=True),
            "roll": CHANGE(self._roll),
            "lease": Verb(self._lease, changes=True, leases=True, refuses_latest=True),
            "release": Verb(self._release, changes=True, leases=True),
            "offloaded": CHANGE(self._offloaded),
            **MemberAdmin(settings, sequencer, member, archiver, wait).verbs,
            **self._cursor_verbs(),
            **self._group_verbs(),
            **QuotaAdmin(self._view, self._change_note).verbs,
        }
        if gate is not None:
            self.verbs |= LevelAdmin(gate, self._change_note).verbs
        if copies is not None:
            self.verbs |= self._copies_verbs(copies)

    def _copies_verbs(self, copies: Inboxes) -> "dict[str, Verb]":
        """Return the requests about sessions and standbys."""
        standby = StandbyAdmin(
            self._settings, self._sequencer, self._member, copies, change_note=self._change_note,
            successions=self._successions, is_own=self._is_own,
        )  # fmt: skip
        self._hear_standby = standby.hear
        sessions = SessionAdmin(
            self._sequencer, self._member, copies, decide=self._decide, settle=self._await_settled,
            wait=self._wait, change_note=self._change_note, now_ns=lambda: self._archiver.now_ns,
        )  # fmt: skip
        return {**sessions.verbs, **standby.verbs}

    def _cursor_verbs(self) -> "dict[str, Verb]":
        """Return the requests about cursors; acknowledgements, being frequent, are not audited."""
        cursors = NodeCursors(
            self._view, self._decided, self._latest, lambda: self._settings.stream, self._log
        )
        return {
            "cursors": Verb(cursors.show, shared=("name",), refuses_latest=True),
            "cursor-ack": self._stepwise(cursors.ack),
            "cursor-open": self._stepwise(cursors.open, changes=True),
            "cursor-reset": self._stepwise(cursors.reset, changes=True),
            "cursor-forget": self._stepwise(cursors.forget, changes=True),
        }

    def _group_verbs(self) -> "dict[str, Verb]":
        """Return the requests about groups; members' reports, being frequent, are not audited."""
        groups = NodeGroups(
            self._view, self._decided, self._latest, self._log,
            lambda identity: identity.may_lease(self._settings.stream), heard=ClaimsHeard(),
        )  # fmt: skip

        def work(request: Fields, identity: PeerIdentity) -> Fields:
            groups.hear(request, identity)
            with self._lock:
                return perform(groups.work(request, identity), self._carry_out)

        return {
            "groups": Verb(groups.show, shared=("name",), refuses_latest=True),
            "group-join": self._stepwise(groups.join, self._lock, changes=True),
            "group-work": Verb(work, refuses_latest=True),
            "group-reset": self._stepwise(groups.reset, self._lock, changes=True),
            "group-forget": self._stepwise(groups.forget, self._lock, changes=True),
        }

    def _stepwise(
        self,
        do: Callable[[Fields, PeerIdentity], Steps[Fields]],
        alone: AbstractContextManager[object] = _NOTHING,
        *,
        changes: bool = False,
    ) -> Verb:
        """Return a verb that performs the steps of `do` while it holds the lock `alone`."""

        def carried_out(request: Fields, identity: PeerIdentity) -> Fields:
            with alone:
                return perform(do(request, identity), self._carry_out)

        return Verb(carried_out, changes=changes, refuses_latest=True)

    def serve(self, sock: ssl.SSLSocket, identity: PeerIdentity) -> None:
        """Receive and answer the requests on a connection, in that connection's thread."""
        with sock:
            where, named = address_of(sock), f"{ADMIN_ALPN}/{self._settings.stream}"
            is_named = sock.selected_alpn_protocol() == named  # the connection names this stream
            line = receive_line(sock, REQUEST_BYTES_MAX, time.monotonic() + self._times.request_s)
            while line:
                end = b"\n" if _keeps(line) else b""
                self._serve(sock, line, identity, where, end, is_named=is_named)
                line = self._next_line(sock, identity) if end else b""

    def _serve(
        self,
        sock: ssl.SSLSocket,
        line: bytes,
        identity: PeerIdentity,
        where: str,
        end: bytes,
        *,
        is_named: bool,
    ) -> None:
        def make() -> bytes:
            return self.answer(line, identity, where, is_named=is_named) + end

        verb = str((decode_fields(line) or {}).get("do"))
        known = self.verbs.get(verb)
        if verb == "log-history" or (known is not None and known.shared is not None):
            self._meter.send(sock, identity, make, self._times.answer_s, is_last=not end)
        else:
            send_all(sock, make(), time.monotonic() + self._times.answer_s)

    def _next_line(self, sock: ssl.SSLSocket, identity: PeerIdentity) -> bytes:
        """Return the next request on a kept connection; b"" if it has ended or was idle."""
        try:
            end_s = time.monotonic() + self._times.idle_s
            line = receive_line_or_end(sock, REQUEST_BYTES_MAX, end_s)
        except TimeoutError:
            return b""
        if line and self._server is not None:
            time.sleep(self._server().ask_admission(lambda each: each.request(identity)))
        return line

    def answer(
        self, line: bytes, identity: PeerIdentity, where: str = "", *, is_named: bool = True
    ) -> bytes:
        """Return the answer to a request.

        Args:
            line: the request as received.
            identity: the peer's identity.
            where: the peer's address.
            is_named: whether the connection names this stream.
        """
        request: Fields | None = None
        try:
            request = decode_request(line)
            if request is None:
                raise Misuse("a request is a JSON object, of few levels")
            if is_named:
                request.setdefault("stream", self._settings.stream)
            self._hear(request, identity)
            if request.get("do") == "log-history":
                self._demand(identity, _HISTORY, request)
                answer = self._shared_history(identity, is_latest=request.get("latest") is True)
            else:
                answer = self._answer(request, identity, where)
            moved = None if request.get("do") in _ABOUT_THE_END else self._moved(request)
            return self._saying(request, answer, moved)
        except (Refused, Misuse) as error:
            answer = json.dumps({"error": str(error), "code": _code(error)}).encode()
            return self._saying(request or {}, answer)

    def _hear(self, request: Fields, identity: PeerIdentity) -> None:
        """Accept the statement that a request may bring: that one log continues another.

        Raises:
            Refused: the log of this node has ended, and the peer is neither operator nor node.
        """
        text, known = request.get(FIELD), self._successions
        if known is not None and isinstance(text, str) and request.get("do") != SUCCEED:
            with suppress(Refused) if identity.may_operate else _NOTHING:
                known.hear(text)

    def _saying(self, request: Fields, answer: bytes, moved: Refused | None = None) -> bytes:
        """Return an answer that also says where another cluster continues the log, if one does.

        This is added to the answer's first line, a JSON object. So is the latest signed statement
        that one log continues another, unless the request contained the same statement.
        """
        texts = () if self._successions is None else self._successions.say()
        added = {} if moved is None else {MOVED: str(moved)}
        if texts and request.get(FIELD) != texts[-1]:
            added[FIELD] = texts[-1]
        if not added:
            return answer
        line, end, rest = answer.partition(b"\n")
        return encoded(added | json.loads(line)) + end + rest

    def _answer(self, request: Fields, identity: PeerIdentity, where: str) -> bytes:
        verb = self.verbs.get(str(request.get("do")))
        if verb is None:
            raise Misuse(f"a node does one of {', '.join(sorted(self.verbs))}, log-history")
        if verb.changes:
            try:
                answer = self._change(verb, request, identity, where)
            finally:
                # In any case: a change refused as undecided may still be carried out.
                self._changes = next(self._numbers)
            return json.dumps(answer).encode()
        self._demand(identity, verb, request)
        if verb.shared is not None:
            return self._shared_answer(verb, request, identity)
        return json.dumps(self._done(verb, request, identity)).encode()

    def _shared_answer(self, verb: Verb, request: Fields, identity: PeerIdentity) -> bytes:
        """Return an answer that other peers may share; it includes the time at which it was made.

        A request with `latest` shares only answers begun after a majority has confirmed the leader.
        """
        fields = [repr(request.get(each)) for each in verb.shared or ()]
        question = (request["do"], *fields)
        is_confirmed = request.get("latest") is True

        def do() -> Fields:
            nonlocal is_confirmed
            since_s = time.monotonic() if is_confirmed else float("-inf")
            is_confirmed = True  # a repetition is always as of the latest
            data = self._shared.get(
                question, lambda: encoded(verb.do(request, identity)), state=self._state,
                since_s=since_s,
            )  # fmt: skip
            return {"data": data}

        if verb.refuses_latest:
            done = perform(confirmed(do, self._view, self._latest, request), self._carry_out)
        else:
            if is_confirmed:
                self._await_latest()
            done = do()
        data: bytes = done["data"]
        return data

    def _state(self) -> tuple[object, ...]:
        """Return the state that shared answers depend on: leader, notes, completed changes."""
        view = self._sequencer.view
        return self._changes, view.leads, view.engine.term, view.notes

    def _change(self, verb: Verb, request: Fields, identity: PeerIdentity, where: str) -> Fields:
        """Make a change and return its answer; record the change or its refusal in the audit log.

        The record names two instructions: the last one executed before the change, and the last one
        executed once it was made. The change is one of the instructions after the first of these.
        """

        def record(outcome: str, **facts: object) -> None:
            if self._audit is not None:
                is_client = not identity.may_operate
                title = identity.title
                self._audit.record(request, title, where, outcome, is_client=is_client, **facts)

        after = self._sequencer.view.executed
        try:
            self._demand(identity, verb, request)
            answer = self._done(verb, request, identity)
        except (Refused, Misuse) as error:
            record(_code(error), why=str(error))
            raise
        record("done", after=after, by_instruction=self._sequencer.view.executed)
        return answer

    def _done(self, verb: Verb, request: Fields, identity: PeerIdentity) -> Fields:
        """Carry out a request; first wait for the latest state if the request needs it."""
        if verb.refuses_latest:
            steps = confirmed(lambda: verb.do(request, identity), self._view, self._latest, request)
            return perform(steps, self._carry_out)
        if verb.is_latest or request.get("latest") is True:
            self._await_latest(may_follow=verb.may_follow)
        return verb.do(request, identity)

    def _demand(self, identity: PeerIdentity, verb: Verb, request: Fields) -> None:
        demand_stream(self._settings.stream, request, is_change=verb.changes)
        demand_log(self._member.executor.appender.identity.id, request)
        is_operator = identity.role is CertificateRole.OPERATOR
        if not identity.may_operate or (
            is_operator
            and request.get("do") not in _ABOUT_THE_END
            and (verb.changes or verb.is_latest or request.get("latest") is True)
        ):
            self._demand_current(request)
        if verb.for_all:
            return
        session, stream = str(request.get("session")), self._settings.stream
        is_change = verb.changes or verb.operators_only
        if is_change and identity.is_node and not self._votes(identity.name):
            words = f"{identity.title} is a learner, which changes nothing before it is promoted"
            raise Refused("role", words)
        if verb.pushes:
            pushes = identity.may_push_to(stream, is_own=self._is_own)
            if identity.may_operate or (pushes and identity.may_push(session)):
                return
            needed = f"an operator, or a publisher that is granted session {shown(session)} here,"
        elif not identity.may_look(stream):
            needed = "a subscriber of this stream, an operator or a node"
        elif verb.operators_only and not identity.may_operate:
            needed = "an operator or a node"
        elif verb.leases and not identity.may_lease(stream):
            needed = f"an operator, a node or a subscriber with leases = true in {GRANTS_NAME}"
        else:
            return
        raise Refused("role", f"{identity.title} may not ask this; {needed} may")

    def _demand_current(self, request: Fields) -> None:
        if (moved := self._moved(request)) is not None:
            raise moved

    def _moved(self, request: Fields) -> Refused | None:
        """Return the refusal to send to peers if another cluster continues the log; else None.

        A statement that only this node has received is enough to refuse, except if the request
        itself brings a statement (`SUCCEED`).
        """
        if (moved := moved_away(self._sequencer.view.notes)) is not None:
            return moved
        known = None if self._successions is None else self._successions.ended
        return None if known is None or request.get("do") == SUCCEED else ended(known)

    def _policy(self, _request: Fields, _identity: PeerIdentity) -> Fields:
        archiver = self._archiver
        return self._ruled(*self._sequencer.ask(lambda: (archiver.disks(), archiver.leases)))

    def _ruled(self, disks: Sequence[DiskReport], leases: Sequence[Lease]) -> Fields:
        view = self._sequencer.view
        return {
            "policy": json.loads(policy_of_notes(view.notes).text()),
            "is_default": POLICY_NOTE not in view.notes,
            "archived_to": str(view.archived_to),
            "leases": [json.loads(each.text()) for each in leases],
            "disks": [
                {"node": disk.node, "total": disk.total, "used": disk.used,
                 "percent": round(disk.percent, 1)}
                for disk in disks
            ],
        }  # fmt: skip

    def _set_policy(self, request: Fields, identity: PeerIdentity) -> Fields:
        policy = policy_of(request.get("policy"))
        demand_disks(policy, self._sequencer.ask(self._archiver.disks))
        if policy.messages is not None:
            self._await_latest()
            self._wait(Until(lambda: self._sequencer.ask(self._has_level)))
            demand_level(self._sequencer.view.notes, COUNTING)
        self._note(POLICY_NOTE, policy.text())
        return self._policy(request, identity)

    def _has_level(self) -> bool:
        """Whether a new cluster has agreed on its level."""
        member = self._member
        return member.proposals.founding is None or not member.executor.ledger.is_new

    def _change_note(self, name: str, changed: Callable[[str, int], str | None]) -> None:
        """Change a note by compare-and-set; see `ChangedNotes.change`."""
        perform(ChangedNotes(self._view, self._decided).change(name, changed), self._carry_out)

    def _plan(self, request: Fields, _identity: PeerIdentity) -> Fields:
        """Return an archiving plan from data at most a second old; this thread makes the plan."""
        at_ns = request.get("at_ns", 0)
        if type(at_ns) is not int or not 0 <= at_ns < _TIME_END_NS:
            raise Misuse("at_ns is a time in ns since the epoch")
        view = self._sequencer.view
        state = self._changes, view.leads, view.engine.term, view.notes.get(POLICY_NOTE)
        is_latest = request.get("latest") is True
        found = self._prospects.get(
            "prospect", lambda: self._sequencer.ask(self._archiver.prospect), state=lambda: state,
            since_s=time.monotonic() if is_latest else float("-inf"), every_s=_PLANNED_S,
        )  # fmt: skip
        at_ns = request.get("at_ns", found.now_ns)
        rows = [each._asdict() for each in found.plan(at_ns)]
        return {**self._ruled(found.disks, found.leases), "at_ns": at_ns, "files": rows}

    def _end(self, request: Fields, identity: PeerIdentity) -> Fields:
        """With `latest`, return the stream's end; otherwise the end of what this node serves.

        With `latest`, a request may give a position as `since`; the answer then says how many bytes
        are between that and the end.
        """
        view = self._sequencer.view
        if request.get("latest") is not True and self._served is not None:
            return {"end": str(self._served())}
        appender = self._member.executor.appender
        fields: Fields = {
            "end": str(view.end), "number": view.number, "digest": view.digest.hex(),
            "log": appender.identity.id,
        }  # fmt: skip
        if "since" in request:
            since = position_in(request, "since")
            self._hear_standby(identity, since)
            fields["bytes"] = bytes_between(appender.manifest, since, view.end)
        return fields

    def _roll(self, _request: Fields, _identity: PeerIdentity) -> Fields:
        # Another node may have confirmed messages that are not executed here yet.
        self._await_latest()
        before = self._sequencer.view.end
        if not before.offset:
            return {"rolled": None}
        wanted = Roll(time.time_ns())
        self._decide(wanted, lambda: self._sequencer.view.end.file > before.file)
        return {"rolled": before.file_name}

    def _await_latest(self, *, may_follow: bool = False) -> None:
        perform(self._latest(may_follow=may_follow), self._carry_out)

    def _latest(self, *, may_follow: bool = False) -> Steps[None]:
        return latest(self._view, self._member.reads, may_follow=may_follow)

    def _decided(
        self, instruction: Instruction, is_done: Callable[[], bool], /, *, may_repeat: bool = False
    ) -> Steps[None]:
        return decided(self._view, self._latest, instruction, is_done, may_repeat=may_repeat)

    def _carry_out(self, need: Need) -> None:
        """Do in this thread what a request's steps need next: an order, a question or a wait."""
        if isinstance(need, Order):
            demand_unsealed(self._sequencer.view.notes, need.instruction)
            self._sequencer.order(need.instruction)
        elif isinstance(need, Ask):
            self._sequencer.ask(need.question)
        else:
            self._wait(need)

    def _log(self) -> LogDirectory:
        return LogDirectory(self._member.executor.appender.directory)

    def _lease(self, request: Fields, identity: PeerIdentity) -> Fields:
        now_ns = self._sequencer.ask(lambda: self._archiver.now_ns)  # the time that retention uses
        lease = new_lease({**request, "holder": identity.name}, now_ns)
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
            demand_no_secret(str(json.loads(text).get("url", "")))
        self._note(OFFLOAD_NOTE, text)
        return {"offloaded": text}

    def _note(self, name: str, text: str) -> None:
        wanted = text or None
        with self._lock:
            self._decide(
                Note(time.time_ns(), name, text),
                lambda: self._sequencer.view.notes.get(name) == wanted,
            )

    def _decide(self, instruction: Instruction, is_done: Callable[[], bool]) -> None:
        perform(self._decided(instruction, is_done), self._carry_out)

    def _await_settled(self, index: int) -> None:
        """Wait until a majority durably has everything merged up to an instruction."""
        self._wait(
            Until(
                lambda: self._sequencer.ask(lambda: self._archiver.settled_index) >= index,
                _SETTLED_S, "no majority has saved its state yet; ask again in a while",
            )
        )  # fmt: skip

    def _shared_history(self, identity: PeerIdentity, *, is_latest: bool) -> bytes:
        """Return the log's history, shared among peers; with `is_latest`, up to the log's end."""
        if is_latest:
            self._await_latest(may_follow=True)
        since_s, is_whole = time.monotonic() if is_latest else float("-inf"), identity.may_operate
        return self._shared.get(
            ("log-history", is_whole, is_latest),
            lambda: self._history(is_whole=is_whole, is_latest=is_latest),
            state=self._state, since_s=since_s,
        )  # fmt: skip

    def _history(self, *, is_whole: bool = True, is_latest: bool = False) -> bytes:
        """Return the log's history: a line of JSON, then the manifest as it is on the disk.

        The client parses the manifest, so that this costs no time here. Only operators and nodes
        see the log's directory (`is_whole`).
        """
        directory, line, is_whole_here = self._sequencer.ask(self._active)
        if is_latest and not is_whole_here:
            words = "the merged log of this node is being copied, or is forked; ask another"
            raise Refused("undecided", words)
        end = self._sequencer.view.end
        # The active file's line and the end are read before the manifest. A file rolled in between
        # is then in both line and manifest, and the client drops one; else it could be in neither.
        with closing(OsDisk().open_read(os.path.join(directory, FILE_NAME))) as file:
            data = file.pread(manifest_size(file), 0)
        shown_path = directory if is_whole else os.path.basename(directory)
        head = {"directory": shown_path, "node": self._settings.name, "bytes": len(data)}
        head |= {"as_of_ns": time.time_ns(), "end": str(end), "latest": is_latest}
        # Older versions allowed a URL with a password in the note.
        head["offloaded"] = masked(
            decode_fields(self._sequencer.view.notes.get(OFFLOAD_NOTE, "{}")) or {}
        )
        return json.dumps({**head, "active": line}).encode() + b"\n" + data

    def _active(self) -> tuple[str, object, bool]:
        """Return the merged log's directory, its active file, and whether the log is complete."""
        execution, executor = self._member.execution, self._member.executor
        log = executor.appender
        line = active(log.end.file, log.facts, log.end.offset).line if log.is_open else None
        return log.directory, line, not (execution.suspended or executor.lacks_log)


def _code(error: Refused | Misuse) -> str:
    return error.code if isinstance(error, Refused) else "misuse"


def _keeps(line: bytes) -> bool:
    """Whether the peer wants to make another request on this connection."""
    request = decode_fields(line) or {}
    return request.get("keep") is True and request.get("do") != "log-history"

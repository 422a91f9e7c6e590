"""SessionAdmin: answers operators' questions about sessions, and makes their changes."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final, NamedTuple, TypeVar

from rt.errors import Misuse, Refused
from rt.events import SessionChange
from rt.names import SessionName, parse_session
from rt.net.authority.identity import PeerIdentity
from rt.net.exchange import Fields, position_in
from rt.node.admin.verb import CHANGE, Verb
from rt.node.agree.sequencer import NodeSequencer, demand_leading
from rt.node.agree.steps import Until
from rt.node.ingest.inbox import NodeInbox
from rt.node.ingest.inboxes import Inboxes
from rt.node.sessions.policy import SESSIONS_NOTE, session_policy_of, session_policy_of_notes
from rt.node.sessions.takeover import Takeover, takeover_of
from rt.position import START, Position
from sequencer.ledger.life import Life
from sequencer.ledger.session_facts import Ownership
from sequencer.member import Member
from sequencer.planning.holdings import Holdings
from sequencer.planning.session_records import Stuck

Value = TypeVar("Value")
_REPORTED_S: Final = 3.0  # nodes report to the leader every 2 s if anything has changed


class SessionAdmin:
    """SessionAdmin: reads the leader's ledger and copies, and orders changes of sessions.

    Threads: any connection's thread may call it; `_member` is used only inside `_sequencer.ask`.
    """

    def __init__(
        self,
        sequencer: NodeSequencer,
        member: Member,
        copies: Inboxes,
        *,
        decide: Callable[[Life, Callable[[], bool]], None],
        settle: Callable[[int], None],
        wait: Callable[[Until], None],
        change_note: Callable[[str, Callable[[str, int], str | None]], object],
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Prepare.

        Args:
            sequencer: answers questions between two steps.
            member: this node's member.
            copies: this node's copies of sessions.
            decide: orders a change and waits until the given function returns True.
            settle: waits until a majority durably has everything merged up to an instruction.
            wait: waits until a condition holds; raises `Refused` if it takes too long.
            change_note: changes a note by agreement, like `ChangedNotes.change`.
            now_ns: returns the time that the nodes agree on; called between two steps.
        """
        self._sequencer = sequencer
        self._member = member
        self._copies = copies
        self._decide = decide
        self._settle, self._wait, self._change_note = settle, wait, change_note
        self._now_ns = now_ns

    @property
    def verbs(self) -> dict[str, Verb]:
        """The requests that this object serves, by name."""

        def change(do: Callable[[Fields], Fields]) -> Verb:
            return CHANGE(lambda request, _identity: do(request), is_latest=True)

        return {
            "sessions": Verb(
                lambda request, _identity: self.sessions(request), shared=("session",),
                refuses_latest=True,
            ),
            "adopt-session": change(self.adopt),
            "reset-session": change(self.reset),
            "forget-session": change(self.forget),
            "take-session": Verb(self.take_over, changes=True, pushes=True, is_latest=True),
            "session-policy": Verb(lambda request, _identity: self.policy(request)),
            "set-session-policy": change(self.set_policy),
        }  # fmt: skip

    def sessions(self, request: Fields) -> Fields:
        """Return a row for each session that this leader knows, or only for the named one.

        Raises:
            Refused: this node does not lead.
            Misuse: no node knows the named session.
        """
        name = str(request.get("session", ""))
        self._demand_leader()
        known = self._sequencer.ask(lambda: self._known(name))
        return {"sessions": self._rows_of(known, name)}

    def adopt(self, request: Fields) -> Fields:
        """Let a session whose beginning is archived continue at its first remaining file.

        Raises:
            Refused: this node does not lead, or the session has changed meanwhile.
            Misuse: the session does not need adoption, or has no file left.
        """
        session = _named(request)
        wanted = None if request.get("at") is None else position_in(request, "at")
        self._demand_leader()
        life = self._sequencer.ask(lambda: self._adoption(session, wanted))
        self._decide(life, lambda: self._merged_to(session) != life.before)
        if self._merged_to(session) < life.after:
            raise Refused("changed", f"session {session!r} has changed meanwhile; look again")
        return self._answer(life)

    def reset(self, request: Fields) -> Fields:
        """Let a session start over with another log; return the answer; errors as for `forget`."""
        return self._end(_named(request), SessionChange.RESET)

    def forget(self, request: Fields) -> Fields:
        """Drop all that the nodes know and hold of a session; its log may not be pushed again.

        Raises:
            Refused: this node does not lead, the session is being pushed, or it has changed
                meanwhile.
            Misuse: no node knows the session.
        """
        return self._end(_named(request), SessionChange.FORGOTTEN)

    def take_over(self, request: Fields, identity: PeerIdentity) -> Fields:
        """Take over the name of a session whose owner is gone; continue its log or begin another.

        Raises:
            Refused: this node does not lead, the owner is connected or may come back, or the
                session has changed meanwhile.
            Misuse: no publisher has opened the session.
        """
        wanted = takeover_of(request, identity)
        self._demand_leader()
        since = self._sequencer.ask(lambda: self._member.holdings.round)
        self._await_reports(wanted.session)
        first, index = self._sequencer.ask(lambda: self._taking(wanted))
        if wanted.begins_again:
            self._settle(index)  # as in `_end`
        if wanted.begins_again and not wanted.by_operator:
            self._await_merged(wanted.session, since)
        life, _ = self._sequencer.ask(lambda: self._taking(wanted))
        if (life.since, life.before) != (first.since, first.before):
            raise Refused("changed", f"session {wanted.session!r} has changed meanwhile")
        self._decide(life, lambda: self._owned_since(wanted.session) != life.since)
        return self._answer(life)

    def _taking(self, wanted: Takeover) -> tuple[Life, int]:
        """Return the change that hands over a session, and the last executed instruction."""
        session, ledger = wanted.session, self._member.executor.ledger
        now_ns, policy = self._now_ns(), session_policy_of_notes(ledger.notes)
        self._demand_unfed(session, self._copies.get(session))
        known = wanted.demand_over(ledger.opened.get(session), policy, now_ns)
        life = Life(
            now_ns, SessionChange.TAKEN, session, ledger.merged_to(session),
            log=known.log if wanted.begins_again else "", owner=wanted.owner, since=known.since,
            begins_again=wanted.begins_again,
        )  # fmt: skip
        return life, ledger.index

    def _owned_since(self, session: str) -> int:
        opened = self._member.executor.ledger.opened
        known = self._sequencer.ask(lambda: opened.get(session))
        return 0 if known is None else known.since

    def policy(self, _request: Fields) -> Fields:
        """Return how long publishers may be silent."""
        return asdict(session_policy_of_notes(self._sequencer.view.notes))

    def set_policy(self, request: Fields) -> Fields:
        """Change how long publishers may be silent; return the new policy.

        Raises:
            Misuse: the requested policy is malformed.
        """

        def changed(before: str, _now_ns: int) -> str:
            known = session_policy_of_notes({SESSIONS_NOTE: before} if before else {})
            return session_policy_of(request.get("policy"), known).text()

        self._change_note(SESSIONS_NOTE, changed)
        return self.policy(request)

    def _end(self, session: SessionName, change: SessionChange) -> Fields:
        ask = self._sequencer.ask
        self._demand_leader()
        self._await_reports(session)
        first, _, index = ask(lambda: self._ending(session, change))
        # Before a majority has the merged log durably, a power cut of all nodes may leave merged
        # messages in the copies only.
        self._settle(index)
        # That took seconds, in which the session's publisher may have come back.
        life, known, _ = ask(lambda: self._ending(session, change))
        if life.before != first.before:
            raise Refused("changed", f"session {session!r} was merged further meanwhile")
        self._decide(life, lambda: ask(lambda: self._last_change(session)) != known)
        return self._answer(life)

    def _ending(self, session: SessionName, change: SessionChange) -> tuple[Life, int, int]:
        """Return the change to order, and two instructions by index.

        These are the session's last change and the last instruction executed.
        """
        [_] = self._rows(session)
        copy, ledger = self._copies.get(session), self._member.executor.ledger
        self._demand_unfed(session, copy)
        known = ledger.opened.get(session)
        log = "" if known is None else known.log
        if not log:
            self._demand_log(session, copy)
            log = "" if copy is None else copy.appender.identity.id
        life = Life(time.time_ns(), change, session, ledger.merged_to(session), log=log)
        return life, self._last_change(session), ledger.index

    def _await_reports(self, session: str) -> None:
        """Wait until no node reports a publisher of the session, for at most 3 s.

        A publisher may just have left, or this leader may be new and lack reports. If a publisher
        is still reported after the wait, later checks refuse the request.
        """
        holdings = self._member.holdings

        def is_free() -> bool:
            return holdings.hears_publishers and not holdings.presence.find(session)

        with suppress(Refused):  # later checks refuse the request if they must
            self._wait(Until(lambda: self._sequencer.ask(is_free), _REPORTED_S))

    def _await_merged(self, session: str, since: int) -> None:
        """Wait until everything that a majority may hold of a session is merged.

        What a majority holds may have been acknowledged. Only reports after the round `since`
        count.

        Raises:
            Refused: that takes longer than 3 s.
        """
        member, words = self._member, (
            f"a majority of the nodes may hold messages of session {session!r} that are not "
            "merged; ask again later, or let an operator take it"
        )  # fmt: skip

        def is_merged() -> bool:
            merged_to = member.executor.ledger.merged_to(session)
            return not member.holdings.may_reach(session, merged_to, since)

        self._wait(Until(lambda: self._sequencer.ask(is_merged), _REPORTED_S, words, "unmerged"))

    def _demand_unfed(self, session: str, copy: NodeInbox | None) -> None:
        """Raise `Refused` while a publisher pushes, or may push, the session to any node."""
        if copy is not None and copy.is_fed:
            words = f"session {session!r} is being pushed by {copy.peer!r}; stop it first"
            raise Refused("live", words)
        holdings = self._member.holdings
        if nodes := [*holdings.presence.find(session)]:
            words = f"session {session!r} is being pushed to node {nodes[0]}; stop its publisher"
            raise Refused("live", words)
        if not holdings.hears_publishers:
            raise Refused(
                "busy",
                f"node {self._member.name} leads, and has not heard yet which sessions are pushed "
                "to the other nodes; ask again in a few seconds",
            )

    def _demand_log(self, session: str, copy: NodeInbox | None) -> None:
        """Refuse to end a session if another node holds more of it and no checked copy is here.

        Only a copy has the log's id. Without the id, the log could not be retired: it could be
        pushed again and merged twice.
        """
        member = self._member
        own, others = member.holdings.own.get(session, START), member.holdings.others
        more = [each for each in others if member.holdings.of(each).get(session, START) > own]
        checked = member.executor.logs.records.checked
        if more and (copy is None or session not in checked):
            raise Refused(
                "elsewhere",
                f"node {member.name} leads, and does not hold all of session {session!r}, as "
                f"{more[0]} does; restart {member.name}, so that another node leads, and ask again",
            )

    def _last_change(self, session: str) -> int:
        begun = self._member.executor.ledger.begun
        return begun[session][0] if session in begun else 0

    def _answer(self, life: Life) -> Fields:
        rows = self._sequencer.ask(lambda: self._rows(life.session, known=False))
        row = rows[0] if rows else {}
        is_same = life.change is SessionChange.TAKEN and not life.ends_log
        after = life.before if is_same else life.after
        changed = {"before": str(life.before), "after": str(after), "retired": life.log}
        return {"session": life.session, "change": life.change.value, **changed, "now": row}

    def _adoption(self, session: SessionName, wanted: Position | None) -> Life:
        """Return the change that adopts a session; call this between two steps."""
        copy, before = self._copies.get(session), self._member.executor.ledger.merged_to(session)
        if copy is None:
            raise Misuse(f"the leader holds nothing of session {session!r}; push it first")
        known = copy.appender.manifest
        active = copy.appender.end.file
        left = [file for file in known.order if file + (known.rolled_end(file) or 0) > before]
        if active not in known.rolled:
            left.append(active)
        if not left or left[0] not in known.archived:
            raise Misuse(
                f"session {session!r} is merged up to {before}, and what follows is not archived; "
                "it needs no adoption"
            )
        starts = [file for file in left if file not in known.archived]
        if not starts:
            raise Misuse(
                f"nothing of session {session!r} has arrived that follows what is archived; adopt "
                "it when its publisher has pushed more"
            )
        if wanted is not None and wanted not in starts:
            raise Misuse(
                f"session {session!r} has no file at {wanted} that follows what is archived; the "
                f"first is at {starts[0]}"
            )
        at = starts[0] if wanted is None else wanted
        return Life(time.time_ns(), SessionChange.ADOPTED, session, before, at)

    def _rows(self, name: str, *, known: bool = True) -> list[dict[str, Any]]:
        """Return rows about all sessions, or about one; call this between two steps.

        If `known` is set, a session that is not known here raises `Misuse`.
        """
        return self._rows_of(self._known(name), name, known_only=known)

    def _known(self, name: str) -> "_Known":
        """Return a copy of what is known now of all sessions, or, with a `name`, of that one.

        Call this between two steps. Copying takes 0.1 ms with a thousand sessions; making rows of
        the copy takes a hundred times as long, but the steps need not wait for that.
        """
        member, ledger = self._member, self._member.executor.ledger
        holdings, stuck = member.holdings.copied(name), dict(member.proposals.stuck)
        merged, opened = _copied(ledger.sessions, name), _copied(ledger.opened, name)
        return _Known(merged, opened, holdings, stuck, member.name)

    def _rows_of(
        self, known: "_Known", name: str, *, known_only: bool = True
    ) -> list[dict[str, Any]]:
        holdings, merged = known.holdings, known.merged
        names = merged.keys() | known.opened.keys() | {
            each for each, end in holdings.own.items() if end
        }  # fmt: skip
        if name and known_only and name not in names:
            raise Misuse(f"no session {name!r} is known here; rt session list shows them all")
        return [
            {
                "session": each,
                **_owned(known.opened.get(each)),
                "merged": str(merged.get(each, START)),
                "replicated": str(max(holdings.agreed(each), merged.get(each, START))),
                "durable": {
                    node: str(end)
                    for node in (*holdings.others, known.node)
                    if (end := holdings.of(node).get(each))
                },
                "pushed_by": "" if (copy := self._copies.get(each)) is None else copy.peer,
                "stuck": known.stuck[each].words if each in known.stuck else "",
            }
            for each in sorted(names)
        ]

    def _merged_to(self, session: str) -> Position:
        return self._sequencer.ask(lambda: self._member.executor.ledger.merged_to(session))

    def _demand_leader(self) -> None:
        demand_leading(self._sequencer.view)


class _Known(NamedTuple):
    """What a leader knows of sessions at one moment, copied.

    Attributes:
        merged: merged end by session.
        opened: ownership by session.
        holdings: each node's durable ends.
        stuck: why some sessions are not merged.
        node: the leader's name.
    """

    merged: Mapping[str, Position]
    opened: Mapping[str, Ownership]
    holdings: Holdings
    stuck: Mapping[str, Stuck]
    node: str


def _copied(known: Mapping[str, Value], name: str) -> dict[str, Value]:
    """Return a copy of the entries of all sessions, or, with a `name`, of that one."""
    if not name:
        return dict(known)
    return {name: known[name]} if name in known else {}


def _owned(known: Ownership | None) -> dict[str, Any]:
    """Return the fields about a session's owner."""
    if known is None:
        return {"owner": "", "state": "unopened", "closed_ns": 0, "log": ""}
    state = "closed" if known.closed_ns else "open"
    return {"owner": known.owner, "state": state, "closed_ns": known.closed_ns, "log": known.log}


def _named(request: Fields) -> SessionName:
    return parse_session(str(request.get("session", "")))

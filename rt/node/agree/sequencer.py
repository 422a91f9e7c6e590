"""NodeSequencer: collects mail and questions for a node's duties, and runs their steps."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from rt.amounts import duration_text
from rt.errors import Refused, RtError
from rt.node.agree.duties import Duties, Mail
from rt.node.agree.view import NodeView
from rt.node.ingest.damage import DamageFound
from sequencer.ledger.instruction import Instruction, demand_readable
from sequencer.raft.consensus import Status

Answer = TypeVar("Answer")
_ANSWER_S: Final = 10.0


class Question(NamedTuple):
    """Question: another thread's question and the future for its answer."""

    answer: Future[Any]
    ask: Callable[[], Any]

    def put(self) -> None:
        """Ask the question; set the answer, or the `RtError` or `OSError` that was raised."""
        try:
            self.answer.set_result(self.ask())
        except (RtError, OSError) as error:
            self.answer.set_exception(error)


class NodeSequencer:
    """Collects what arrives for a node's `Duties`, and runs a step of the duties when called.

    A thread that adds something calls `ring`; the event loop then calls `step` at the end of its
    turn, once for all that has arrived (`rt.node.agree.duty_turns.DutyTurns`).

    Threads:
        step, finish: called by one thread at a time (`DutyTurns`), `finish` after the last step.
            Only that thread uses `_duties` and the objects that the duties use.
        on_status: set before the first step; a step calls it with each new status of the engine, so
            it must be quick.
        ring: set before the first step; any thread may call it.
        view: replaced whole after each step and never changed; any thread may read it.
        _arrived, _heard, _received, _questions: any thread appends to them, and a step removes
            what is there.
        _next_s: set by a step; another thread may still read the value of the previous step.
        _stopping: set once; a thread that finds it set after asking withdraws its question.
    """

    def __init__(
        self, duties: Duties, demand: Callable[[Instruction], None] = lambda _order: None
    ) -> None:
        """Prepare; nothing is done before `step` is called.

        Args:
            duties: the duties.
            demand: raises `Misuse` for an instruction that no node could read once it was decided.
        """
        self.view: NodeView = duties.view()
        self.on_status: Callable[[Status], None] = lambda _status: None
        self.ring: Callable[[], None] = lambda: None
        self._duties, self._demand = duties, demand
        self._arrived: deque[Callable[[Mail], object]] = deque()  # each adds an item to the mail
        self._heard: deque[tuple[str, bytes]] = deque()  # kept apart, as most mail is messages
        self._received: deque[str] = deque()
        self._questions: deque[Question] = deque()
        self._stopping = False
        self._next_s = time.monotonic()

    def record_synced(self, session: str) -> None:
        """Record that a session was synced, for the step after `ring`."""
        self._arrived.append(lambda mail: mail.synced.setdefault(session))

    def receive(self, sessions: Iterable[str]) -> None:
        """Record that small updates of sessions arrived unsynced, for the step after `ring`."""
        self._received.extend(sessions)

    def hear(self, sender: str, messages: list[bytes]) -> None:
        """Record another node's messages, for the step after `ring`."""
        for each in messages:
            self._heard.append((sender, each))

    def gone(self, member: str) -> None:
        """Record that a node's process has ended; call this after `hear` got its last messages."""
        self._arrived.append(lambda mail: mail.gone.append(member))
        self.ring()

    def told_removed(self, member: str, is_removed: bool) -> None:
        """Record whether a dialled member refuses this node because this node was removed."""
        self._arrived.append(lambda mail: mail.verdicts.update({member: is_removed}))
        if is_removed:  # otherwise it may wait for the next step
            self.ring()

    def mend(self, found: DamageFound) -> None:
        """Report a damaged file; the next step may set it aside."""
        self._arrived.append(lambda mail: mail.damaged.append(found))
        self.ring()

    def order(self, instruction: Instruction) -> None:
        """Propose an instruction soon; it may get lost, for example if this term ends first.

        Raises:
            Refused: this node does not lead.
            Misuse: no node could read the instruction once it was decided.
        """
        self._demand(instruction)
        demand_readable(instruction)
        view = self.view
        demand_leading(view)
        self._arrived.append(lambda mail: mail.orders.append((view.engine.term, instruction)))
        self.ring()

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """Run a question between two steps, while the state does not change; return its answer.

        Everything that arrived before the question is handled first.

        Raises:
            Refused: the node is stopping, or its disk is too slow to answer in time.
        """
        answer: Future[Answer] = Future()
        self._questions.append(asked := Question(answer, question))
        if self._stopping:
            with suppress(ValueError):  # `stop` has cancelled it, or a last step answers it
                self._questions.remove(asked)
                raise Refused("stopping", "this node is stopping")
        self.ring()
        try:
            return answer.result(_ANSWER_S)
        except CancelledError:
            raise Refused("stopping", "this node is stopping") from None
        except TimeoutError:
            raise Refused(
                "busy", f"no answer within {duration_text(_ANSWER_S)}; is the disk slow?"
            ) from None

    def stir(self) -> None:
        """Request a step soon, and keep the node from resting at that step.

        Call this when a publisher comes or goes: what follows may depend on other nodes' reports.
        """
        self._arrived.append(_stir)
        self.ring()

    def step(self, *, ends: bool = False) -> float | None:
        """Run one step of the duties; return when the next is due, by `time.monotonic`.

        After `stop`, do nothing and return None. Return -inf if more mail has arrived meanwhile.

        Args:
            ends: whether to run the step although `stop` was called.

        Raises:
            OSError: the journal's disk failed, or the merged log's.
            CorruptLog: the merged log is damaged, and no other node can provide it.
        """
        if self._stopping and not ends:
            return None
        questions, mail = self._taken_questions() if self._questions else (), Mail()
        # Questions are taken before the mail, so that all earlier mail is handled with them. News
        # that a process has ended is taken before messages, so that no message that the process
        # sent before is left for a later step.
        for _ in range(len(self._arrived)):
            self._arrived.popleft()(mail)
        while self._received:
            mail.received[self._received.popleft()] = None
        for _ in range(len(self._heard)):
            mail.heard.append(self._heard.popleft())
        mail.is_stirred = mail.is_stirred or bool(questions)
        try:
            outcome = self._duties.step(time.monotonic(), mail)
            if outcome.view.engine is not self.view.engine:
                self.on_status(outcome.view.engine)
            self.view, self._next_s = outcome
            for question in questions:
                question.put()
            if questions:  # a question may have changed something
                self.ring()
        finally:
            for question in questions:
                question.answer.cancel()  # no effect if it is answered
        has_more = self._heard or self._received or self._arrived or self._questions
        return float("-inf") if has_more else self._next_s

    def stop(self) -> None:
        """Make later calls of `step` do nothing, and cancel the pending questions."""
        self._stopping = True
        for question in self._taken_questions():
            question.answer.cancel()

    def finish(self) -> None:
        """Handle the mail that is left, then save a last snapshot; errors as for `step`."""
        while self._heard or self._received or self._arrived:
            self.step(ends=True)
        self._duties.end()

    def stepped_s(self) -> float:
        """Return when the next step is due, by `time.monotonic`."""
        return self._next_s

    def _taken_questions(self) -> list[Question]:
        """Remove and return the pending questions; `stop` may remove some at the same time."""
        taken = list[Question]()
        with suppress(IndexError):  # another thread takes the last one
            for _ in range(len(self._questions)):
                taken.append(self._questions.popleft())
        return taken


def _stir(mail: Mail) -> None:
    mail.is_stirred = True


def demand_leading(view: NodeView) -> None:
    """Raise `Refused` unless this node leads."""
    if not view.leads:
        raise not_leader(view.engine.leader)


def not_leader(leader: str) -> Refused:
    """Return a refusal that says which node to ask instead of this one."""
    words = f"{leader} leads the stream; ask it" if leader else "no node leads now"
    return Refused("not-leader", words)

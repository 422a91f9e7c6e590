"""NodeSequencer: decides which thread does a node's duties, and when."""

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from typing import Any, Final, NamedTuple, TypeVar

from rt.errors import Refused, RtError
from rt.node.agree.duties import Duties, Mail
from rt.node.agree.view import NodeView
from rt.node.ingest.damage import DamageFound
from sequencer.ledger.instruction import Instruction, demand_readable
from sequencer.raft.consensus import Status

Answer = TypeVar("Answer")
_TURNS_MAX: Final = 4  # under load `run` takes over, so that connections go back to receiving
_ANSWER_S: Final = 10.0
_LATE_S: Final = 0.5  # if the next step comes sooner by more, `run` must be woken


class Question(NamedTuple):
    """Question: another thread's question and the future for its answer."""

    answer: Future[Any]
    ask: Callable[[], Any]

    def put(self) -> None:
        """Answer the question; an `RtError` or `OSError` becomes the answer too."""
        try:
            self.answer.set_result(self.ask())
        except (RtError, OSError) as error:
            self.answer.set_exception(error)


class NodeSequencer:
    """NodeSequencer: collects what arrives for `Duties`, and calls them on one thread at a time.

    A thread that brings something calls `turn`. If no other thread is doing the duties, it does
    them itself, so a lone message goes from the socket into the merged log and on to the pullers
    without waiting for another thread. Under load the mail piles up, and `run`, in a thread of its
    own, handles it in batches.

    Threads:
        _busy: held while the duties are done. Its holder may use `_duties`, and all that the
            duties act on, and may set `view` and `_next_s`.
        _lock: guards `_mail`, `_questions`, `_is_woken` and `_stopping`; held for an append or a
            swap only.
        _news: the condition over `_lock` that `run` waits for. Others take `_lock` directly: a
            condition costs two more Python calls each time, and a round takes it a dozen times.
        on_status: set before any thread starts; called with each new status of the engine by the
            holder of `_busy`, so it must be quick.
        ring: set before any thread starts, if an event loop does the duties: called instead of
            doing them or waking `run`, which then runs on no thread.
        view: replaced whole after each step and never changed; any thread may read it.
        _next_s: `run` reads it without `_busy`; a late value costs one early or late step.
    """

    def __init__(
        self, duties: Duties, demand: Callable[[Instruction], None] = lambda _order: None
    ) -> None:
        """Prepare; nothing is done before `run` or `turn` is called.

        Args:
            duties: the duties.
            demand: raises `Misuse` for an order that no node could read once it is agreed on.
        """
        self.view: NodeView = duties.view()
        self.on_status: Callable[[Status], None] = lambda _status: None
        self.ring: Callable[[], None] | None = None
        self._duties, self._demand = duties, demand
        self._busy = threading.Lock()
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._mail = Mail()
        self._questions: list[Question] = []
        self._is_woken = False  # since `run` last began to wait, or to step
        self._stopping = False
        self._next_s = time.monotonic()

    def hold(self, session: str) -> None:
        """Record that a session was synced; the next `turn` or `wake` handles it."""
        with self._lock:
            self._mail.synced[session] = None

    def receive(self, sessions: Iterable[str]) -> None:
        """Record small updates of sessions, not synced yet; the next `turn` handles them."""
        with self._lock:
            self._mail.received.update(dict.fromkeys(sessions))

    def hear(self, sender: str, messages: list[bytes]) -> None:
        """Record another node's messages; the next `turn` or `wake` handles them."""
        with self._lock:
            for message in messages:
                self._mail.heard.append((sender, message))

    def gone(self, member: str) -> None:
        """Record that another node's process has ended, after all its messages were recorded."""
        with self._news:
            self._mail.gone.append(member)
            self._notify()

    def mend(self, found: DamageFound) -> None:
        """Have damage that a connection found set aside soon."""
        with self._news:
            self._mail.damaged.append(found)
            self._notify()

    def order(self, instruction: Instruction) -> None:
        """Have this instruction proposed soon, but only in this term; it may be lost.

        Raises:
            Refused: another node leads, or none.
            Misuse: no node could read it once it is agreed on.
        """
        self._demand(instruction)
        demand_readable(instruction)
        view = self.view
        if not view.leads:
            leader = view.engine.leader
            raise Refused("not-leader", leader_words(leader))
        with self._news:
            self._mail.orders.append((view.engine.term, instruction))
            self._notify()

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """Answer a question between two steps, while what it reads does not change.

        Everything that arrived before the question is handled first.

        Raises:
            Refused: the node is stopping, or its disk is too slow to answer in time.
        """
        answer: Future[Answer] = Future()
        with self._news:
            if self._stopping:
                raise Refused("stopping", "this node is stopping")
            self._questions.append(Question(answer, question))
            self._notify()
        try:
            return answer.result(_ANSWER_S)
        except CancelledError:
            raise Refused("stopping", "this node is stopping") from None
        except TimeoutError:
            raise Refused("busy", f"no answer within {_ANSWER_S:g} s; is the disk slow?") from None

    def turn(self) -> None:
        """Do the duties now, unless another thread is doing them; errors as `run`."""
        if self.ring is not None:
            self.ring()
            return
        for _ in range(_TURNS_MAX):
            if not self._busy.acquire(blocking=False):
                return  # the thread that does them checks for mail again after its step
            try:
                if not self._stopping:
                    self._step()
            finally:
                self._busy.release()
            if not self._has_news:
                return
        self.wake()

    def step(self) -> float | None:
        """Do the duties once, for an event loop; return when to step again, None for never."""
        with self._busy:
            if self._stopping:
                return None
            self._step()
        return float("-inf") if self._has_news else self._next_s

    def wake(self) -> None:
        """Have `run` do the duties soon, and once more if it is doing them now."""
        with self._news:
            self._is_woken = True
            self._notify()

    def stir(self) -> None:
        """Like `wake`, and do not rest before what has come is handled."""
        with self._news:
            self._mail.is_stirred = self._is_woken = True
            self._notify()

    def run(self) -> None:
        """Do the duties until stopped, then save a last snapshot. For a thread of its own.

        Raises:
            OSError: the disk of the journal or of the merged log failed.
            CorruptLog: the merged log is damaged, and no other node can provide it.
        """
        while not self._stopping or self._mail.synced:
            with self._news:
                self._await_news()
                self._is_woken = False
            with self._busy:
                self._step()
        with self._busy:  # a turn that began before `stop` may still be running
            self._duties.end()

    def stop(self) -> None:
        """Let `run` execute what was decided, then end; no other thread does duties from now on."""
        with self._news:
            self._stopping = True
            questions, self._questions = self._questions, []
            self._news.notify()
        for question in questions:
            question.answer.cancel()

    def close(self, release: Callable[[], None]) -> None:
        """Release what the duties act on, once no thread does them; also after `run` failed."""
        with self._busy:
            release()

    def stepped_s(self) -> float:
        """Return when the duties are next due."""
        return self._next_s

    def _notify(self) -> None:
        """Wake `run`, or the event loop; call with the lock held."""
        if self.ring is not None:
            self.ring()
        else:
            self._news.notify()

    def _await_news(self) -> None:
        """Wait for news or until a step is due, which may be postponed; call with the lock held."""
        while not (self._has_news or self._is_woken or self._stopping):
            wait_s = self._next_s - time.monotonic()
            if wait_s <= 0:
                return
            self._news.wait(wait_s)

    @property
    def _has_news(self) -> bool:
        return bool(self._mail or self._questions)

    def _step(self) -> None:
        with self._lock:
            mail, self._mail = self._mail, Mail()
            questions, self._questions = self._questions, []
        mail.is_stirred = mail.is_stirred or bool(questions)
        try:
            outcome = self._duties.step(time.monotonic(), mail)
            if outcome.view.engine is not self.view.engine:
                self.on_status(outcome.view.engine)
            late_s = self._next_s - outcome.next_s
            self.view, self._next_s = outcome.view, outcome.next_s
            for question in questions:
                question.put()
            if questions or late_s > _LATE_S:  # a question may have changed something
                self.wake()
        finally:
            for question in questions:
                question.answer.cancel()  # no effect if it is answered


def leader_words(leader: str) -> str:
    """Return the text that says which node to ask instead of this one."""
    return f"{leader} leads the stream; ask it" if leader else "no node leads now"

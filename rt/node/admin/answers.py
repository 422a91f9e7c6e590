"""Answers: peers that ask the same question at about the same time share one answer."""

import json
import ssl
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from replicator.serve.server import Server
from rt.errors import RtError
from rt.net.authority.identity import PeerIdentity
from rt.net.exchange import send_all

Value = TypeVar("Value")
_KEPT_MAX: Final = 16  # answers, of up to 32 MiB with 100,000 sessions
_FRESH_S: Final = 1.0  # maximum age of an answer that is quick to make
# An answer is reused for 50 times the processor time that it took to make, but for at most a
# second; making such answers takes at most 2% of a processor. One that took over 250 ms is reused
# for 4 times that time, so it takes at most a quarter of a processor: an answer about 100,000
# sessions is made every 12 s.
_FRESH_COSTS: Final = 50.0
_LONG_COSTS: Final = 4.0
_CONNECTION_S: Final = 0.004  # processor time of a handshake and a thread


@dataclass(slots=True)
class _Kept:
    """A cached answer: the state it was made from, when, and how long that took.

    Threads: `turn` is held while the answer is made; only its holder uses the other fields.
    """

    turn: threading.Lock = field(default_factory=threading.Lock)
    answer: Any = None
    state: Any = None
    begun_s: float = float("-inf")
    cost_s: float = 0.0
    error: RtError | OSError | None = None  # why the last attempt to make it failed
    tried_s: float = float("-inf")  # when that attempt was begun
    failed_s: float = float("-inf")

    @property
    def fresh_s(self) -> float:
        """How many seconds the answer may be reused; fewer if it is cheap to make."""
        return max(min(_FRESH_S, _FRESH_COSTS * self.cost_s), _LONG_COSTS * self.cost_s)


class SharedAnswers:
    """SharedAnswers: lets peers that ask the same question share an answer, to save work.

    An answer is reused for a time that grows with the cost of making it. It is not reused once the
    state it was made from has changed, so that the author of a change sees the change.

    Threads: any thread may call any method. An entry of `_kept` is added or removed in one step.
        Each answer has its own lock, so that peers wait only for others with the same question.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Start empty."""
        self._clock, self._sleep = clock, sleep
        self._kept: dict[Hashable, _Kept] = {}

    def get(
        self,
        question: Hashable,
        make: Callable[[], Value],
        *,
        state: Callable[[], Any] = lambda: None,
        since_s: float = float("-inf"),
        every_s: float = 0.0,
    ) -> Value:
        """Return the answer to a question.

        If `make` fails, the error is raised for every caller that was waiting for this answer, and
        for none that asks later. If each waiting caller made the answer again, a node that waits
        10 s for its disk would keep the last of them waiting for minutes.

        Args:
            question: equal for callers that may share an answer.
            make: makes an answer.
            state: returns the state; an answer made in another state is not used.
            since_s: a time by the monotonic clock; an answer begun earlier is not used.
            every_s: the shortest time between two answers made in the same state, since making one
                delays another thread. A caller that needs an answer begun after `since_s` waits.
        """
        asked_s = self._clock()
        kept = self._kept.setdefault(question, _Kept())
        for each in [*self._kept][:-_KEPT_MAX]:
            self._kept.pop(each, None)
        with kept.turn:
            now_s, now = self._clock(), state()
            is_ours = kept.failed_s > asked_s and kept.tried_s >= since_s and kept.state == now
            if kept.error is not None and is_ours:
                raise kept.error
            left_s = kept.begun_s + max(kept.fresh_s, every_s) - now_s
            if left_s > 0 and kept.state == now:
                if kept.begun_s >= since_s:
                    return cast("Value", kept.answer)
                if every_s:
                    self._sleep(left_s)
                    now_s = self._clock()
            began_s = time.thread_time()
            try:
                answer = kept.answer = make()
            except (RtError, OSError) as error:
                kept.error, kept.failed_s = error, self._clock()
                kept.tried_s, kept.state, kept.begun_s = now_s, now, float("-inf")
                raise
            kept.cost_s = time.thread_time() - began_s
            kept.begun_s, kept.state, kept.error = now_s, now, None
            return answer


class AnswerMeter:
    """AnswerMeter: charges peers for the processor time and bytes of their answers.

    Threads: any thread may call any method; the server's loop does the charging.
    """

    def __init__(self, server: Callable[[], Server] | None = None) -> None:
        """Prepare; `server` returns the server whose admission charges peers; None charges none."""
        self._server = server

    def send(
        self,
        sock: ssl.SSLSocket,
        peer: PeerIdentity,
        make: Callable[[], bytes],
        patience_s: float,
        *,
        is_last: bool = True,
    ) -> None:
        """Answer a peer.

        Args:
            sock: its connection.
            peer: its identity, which is charged.
            make: makes the answer.
            patience_s: how long the peer may take to receive it.
            is_last: whether the answer ends the connection; the connection's cost is then charged
                too.
        """
        if self._server is None:
            send_all(sock, make(), time.monotonic() + patience_s)
            return
        server, answer = self._server(), b""
        turn = server.ask_admission(lambda admission: admission.ask(peer))
        if turn.held_s:
            time.sleep(turn.held_s)
        began_s = time.thread_time()
        try:
            answer = make()
            send_all(sock, answer, time.monotonic() + patience_s)
        finally:
            seconds = time.thread_time() - began_s + (_CONNECTION_S if is_last else 0.0)
            size = len(answer)
            server.ask_admission(lambda admission: admission.answered(peer, turn, seconds, size))


def dated(answer: bytes, now_ns: int) -> bytes:
    """Return a non-empty JSON object with the time of sending added.

    >>> dated(b'{"node": "n1"}', 7)
    b'{"now_ns": 7, "node": "n1"}'
    """
    return b'{"now_ns": %d, ' % now_ns + answer[1:]


def encoded(fields: dict[str, Any]) -> bytes:
    """Return an answer encoded for sending, with the time it was made."""
    return json.dumps({**fields, "as_of_ns": time.time_ns()}).encode()

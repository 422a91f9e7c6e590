"""StreamFollower: applies each message of the merged log, and wakes waiting requests."""

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

from rt.errors import RtError, spoken
from rt.format.message import Message
from rt.gateway.answers import FailedError
from rt.gateway.model import StreamVerdict, change_of
from rt.gateway.store import StreamStore
from rt.position import START, Position
from rt.subscriber import Subscriber

_log: Final = logging.getLogger("rt.gateway")
_COMMIT_S: Final = 1.0
_TRIM_S: Final = 60.0  # how often refusals of archived messages are forgotten
_REACHED_S: Final = 5.0
_IDLE_S: Final = 0.2  # once no message has come for this long, what was executed is written
NAME_BYTES_MAX: Final = 255
ANY_STREAM: Final = ""  # a future for this name completes with every message
_T = TypeVar("_T")


class StreamFollower:
    """Follows the merged log in a thread, and applies its messages to the streams.

    Threads: the thread runs `_run` and what it calls; the owner calls `start` and `stop`; the event
        loop calls everything else. Any thread may read `end` and `failure`; `stop` sets
        `_is_stopping`; `_lock` guards `_expected` and `_changed`; `_due` is set before the
        thread starts.
    """

    def __init__(
        self,
        store: StreamStore,
        subscriber: Subscriber,
        begin: Callable[[], Position],
        latest: Callable[[], Position | None] = lambda: None,
    ) -> None:
        """Prepare; call `start` to begin.

        Args:
            store: the streams that messages change.
            subscriber: begins at `store.position`; closed by `stop`.
            begin: returns the position at which the copy begins; everything earlier is archived.
            latest: asks the nodes where the log ends now; None if they do not say it.
        """
        self._begin, self._begin_s = begin, float("-inf")
        self.end = store.position
        self.failure = ""  # why it has ended
        self._reached = threading.Event()  # the end that the log had when it began
        self._latest = latest
        self._due: Position | None = None  # the end that the log had when this began, if known
        self._is_stopping = False
        self._store = store
        self._subscriber = subscriber
        self._lock = threading.Lock()
        self._expected: dict[tuple[str, int], asyncio.Future[StreamVerdict]] = {}
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._changed: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)

    def start(self) -> None:
        """Start the thread; wait a few seconds at most for it to read the whole log."""
        self._due = self._latest()
        self._thread.start()
        self._reached.wait(_REACHED_S)

    @property
    def is_behind(self) -> bool:
        """Whether this follower has yet to reach the end that the log had at the start."""
        return not self._reached.is_set()

    def demand_running(self) -> None:
        """Raise `FailedError` if the thread has ended because of an error."""
        if self.failure:
            raise FailedError(503, f"the gateway follows the log no more: {self.failure}")

    def serve(self) -> None:
        """Remember the calling event loop, in which waiting requests are woken."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._wake()  # forgets earlier changes, so that later ones call it again

    def stop(self) -> None:
        """Stop the thread and save the streams."""
        self._is_stopping = True
        self._subscriber.stop()
        if self._thread.is_alive():
            self._thread.join()
        self._subscriber.close()
        self._store.close()

    def expect(self, session: str, sequence: int) -> "asyncio.Future[StreamVerdict]":
        """Return a future for the outcome of a message; call it before publishing the message."""
        future: asyncio.Future[StreamVerdict] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._expected[session, sequence] = future
        return future

    def forget(self, session: str, sequence: int) -> None:
        """Drop the future of a message that was not published."""
        with self._lock:
            self._expected.pop((session, sequence), None)

    @contextmanager
    def waiting(self, name: str) -> "Iterator[asyncio.Future[None]]":
        """Yield a future that completes when a stream changes; for `ANY_STREAM`, at any message."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[name].add(future)
        try:
            yield future
        finally:
            self._waiting[name].discard(future)
            if not self._waiting[name]:
                del self._waiting[name]

    def _run(self) -> None:
        try:
            self._follow()
        except (RtError, OSError) as error:
            self.failure = spoken(error)
            _log.error("the gateway follows the log no more: %s", self.failure)
        except Exception:
            self.failure = "internal error"
            raise
        finally:
            self._reached.set()
            self._call(self._wake_all)

    def _follow(self) -> None:
        written_s = time.monotonic()
        subscriber = self._subscriber
        while True:
            for message in subscriber.messages(_IDLE_S):
                self._execute(message)
                self.end = message.next_position
                if self._due is not None and self.end >= self._due:
                    self._reached.set()  # a busy log may have no pause for a long time
                if time.monotonic() - written_s > _COMMIT_S:
                    break
            else:
                self.end = max(self.end, subscriber.position)
                self._reached.set()
                if self._is_stopping:
                    break
            written_s = time.monotonic()
            is_due = written_s - self._begin_s > _TRIM_S
            self._begin_s = written_s if is_due else self._begin_s
            self._store.commit(self.end, self._begin() if is_due else START)
        self._store.commit(self.end)

    def _execute(self, message: Message) -> None:
        change, name = change_of(message), name_of(message)
        verdict = StreamVerdict(400, "the header of the message is not a gateway's")
        if change is not None and name:
            verdict = self._store.execute(name, change, message.payload, message.position)
        with self._lock:
            expected = self._expected.pop((message.session, message.sequence), None)
            is_first = not self._changed
            self._changed.add(ANY_STREAM)
            if verdict.is_new:
                self._changed.add(name)
        if is_first:
            self._call(self._wake)
        if expected is not None:
            self._call(_settle, expected, verdict)

    def _call(self, act: Callable[..., None], *arguments: object) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the event loop has ended, and no request waits
                self._loop.call_soon_threadsafe(act, *arguments)

    def _wake(self) -> None:
        with self._lock:
            changed, self._changed = self._changed, set()
        for name in changed:
            for future in self._waiting.get(name, ()):
                _settle(future, None)

    def _wake_all(self) -> None:
        for waiting in list(self._waiting.values()):
            for future in waiting:
                _settle(future, None)
        with self._lock:
            expected, self._expected = self._expected, {}
        for each in expected.values():
            _settle(
                each, StreamVerdict(503, f"the gateway follows the log no more: {self.failure}")
            )


def name_of(message: Message) -> str:
    """Return the name of a message's stream, which is its key; "" if the key is not a name."""
    key = message.key
    if not key or len(key) > NAME_BYTES_MAX:
        return ""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return ""


def _settle(future: "asyncio.Future[_T]", value: _T) -> None:
    if not future.done():
        future.set_result(value)

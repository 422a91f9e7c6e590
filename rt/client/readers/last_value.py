"""LastValue: the last message of each key, as a mapping that follows the stream."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Final, Self

from rt.amounts import duration_text
from rt.client.readers.checkpoint import Checkpoint, Values
from rt.errors import Misuse, RtError, Stopped, SupersededError, spoken
from rt.events import CaughtUp, Event, Gap, Superseded
from rt.format.message import Message
from rt.log.files.archived import is_own_gap, place_after
from rt.log.files.directory import LogDirectory
from rt.position import Position
from rt.subscriber import Subscriber

_log: Final = logging.getLogger("rt.client")
_LOOK_S: Final = 0.2  # a stop is noticed within this time if nothing arrives
_POLL_S: Final = 0.01


class LastValue(Mapping[bytes, Message]):
    """The last message of each key; a key whose last payload is empty is absent.

    Lookups never wait. Messages without a key are ignored. The values are stored from time to time
    and by `close`, so that the next `LastValue` reads only newer messages.

    Threads: Any thread may look values up and set `_is_stopping`. The thread of `_run` alone
        changes `_values`, a key in one step, and sets `_position` and `_error`.
    """

    def __init__(
        self,
        reader: Callable[[Position, Callable[[Event], None]], Subscriber],
        checkpoint: Checkpoint,
        values: Values,
        complete: Callable[[float], Position],
        *,
        keys_max: int,
        checkpoint_s: float,
    ) -> None:
        """Made by `rt.client.client.Client.last_value`; do not call it yourself.

        Args:
            reader: returns a reader that begins at a position and reports its events to a function.
            checkpoint: where the values are stored.
            values: the values that `checkpoint` has stored.
            complete: returns the stream's end once the copy has reached it; raises if that takes
                longer than the given seconds.
            keys_max: more keys than this are an error.
            checkpoint_s: how often the values are stored, if they have changed.
        """
        self._checkpoint = checkpoint
        self._keys_max, self._checkpoint_s = keys_max, checkpoint_s
        self._values, self._position = values.messages, values.position
        self._error: Exception | None = None
        self.is_closed = self._is_stopping = False
        self._complete = complete
        self._stored_to, self._stored_s = values.position, time.monotonic()
        self._reader = reader(values.position, self._meet)
        self._thread = threading.Thread(target=self._run, name="last value", daemon=True)
        self._thread.start()

    @property
    def position(self) -> Position:
        """The position up to which all messages are included."""
        return self._position

    def __getitem__(self, key: bytes) -> Message:
        self._demand_whole()
        return self._values[key]

    def __iter__(self) -> Iterator[bytes]:
        self._demand_whole()
        return iter(list(self._values))

    def __len__(self) -> int:
        self._demand_whole()
        return len(self._values)

    def wait_caught_up(self, timeout_s: float = 30.0) -> None:
        """Wait until all messages that were merged before this call are included.

        Raises:
            TimeoutError: they are not all included after `timeout_s`, or no node says where the
                stream ends.
            RtError: the stream cannot be read; every lookup raises that error, too.
        """
        end_s = time.monotonic() + timeout_s
        end = self._complete(timeout_s)
        with closing(LogDirectory(self._reader.directory)) as log:
            while self._read_to(log, end) < end:
                len(self)  # raises the error that ended the following
                if self._is_stopping:
                    raise Stopped("the last values were closed")
                if time.monotonic() > end_s:
                    words = f"after {duration_text(timeout_s)}, and the stream ends at {end}"
                    raise TimeoutError(f"the last values are read up to {self._position} {words}")
                self._thread.join(_POLL_S)
        len(self)

    def _read_to(self, log: LogDirectory, end: Position) -> Position:
        """Return where reading continues; rereads the manifest only if `end` is not reached yet."""
        position = self._position
        if position < end:
            log.refresh()
        return place_after(log.manifest, position)

    def close(self) -> None:
        """Stop following, and store the values. Idempotent; lookups still work."""
        self._is_stopping = True
        self._reader.stop()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._checkpoint.close()
        self.is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LastValue of {len(self._values)} keys, up to {self._position}>"

    def _demand_whole(self) -> None:
        """Raise the error that ended following, since the values are no longer up to date."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            more = True
            while more:
                more = self._follow()
                if not more or time.monotonic() - self._stored_s >= self._checkpoint_s:
                    self._store()
        except (RtError, OSError) as error:
            _log.error("the last values end at %s: %s", self._position, spoken(error))
            self._error = error
        finally:
            self._reader.close()

    def _follow(self) -> bool:
        """Read messages until none comes for a while, or it is time to store.

        Returns:
            Whether to go on; False if this is being stopped.
        """
        due_s = self._stored_s + self._checkpoint_s
        for message in self._reader.messages(_LOOK_S):
            if message.key:
                self._take(message)
            if time.monotonic() > due_s:
                break
        self._position = self._reader.position
        return not self._is_stopping

    def _take(self, message: Message) -> None:
        keys_max = self._keys_max
        if not message.payload:
            self._values.pop(message.key, None)
        elif message.key in self._values or len(self._values) < keys_max:
            self._values[message.key] = message
        else:
            raise Misuse(f"the stream has more than keys_max = {keys_max} keys; allow more")

    def _meet(self, event: Event) -> None:
        if isinstance(event, CaughtUp):
            self._position = event.position
        elif isinstance(event, Superseded):  # values from beyond the cut are in no log any more
            raise SupersededError(event)
        elif isinstance(event, Gap):
            if is_own_gap(event):
                raise Misuse(
                    f"this copy lacks the log from {event.begin} to {event.end} ({event.reason}): "
                    "the last values of some keys are not in it; give the client another root, "
                    "where it copies the whole stream"
                )
            _log.warning("last values: %s; those of its keys are older", event)

    def _store(self) -> None:
        """Store the values, unless nothing has come since the last time."""
        if self._position != self._stored_to:
            try:
                self._checkpoint.store(Values(self._position, self._values))
            except Misuse as error:  # a value is too large, with what is stored beside it
                _log.warning("the last values are not stored: %s", error)
        self._stored_to, self._stored_s = self._position, time.monotonic()

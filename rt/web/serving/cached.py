"""Cached: a value that is read on request, but at most every few seconds."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from rt.errors import CorruptLog, Misuse

Value = TypeVar("Value")


class Cached(Generic[Value]):
    """Keeps the value that was read last, for as long as it may be shown.

    Threads: any thread may call `get`. `_lock` guards the other fields, and is held during a read,
        so that two simultaneous requests read once.
    """

    def __init__(self, value: Value, every_s: float) -> None:
        """Keep `value` until the first read; read again after `every_s` seconds."""
        self._value = value
        self._every_s = every_s
        self._looked_s = float("-inf")
        self._lock = threading.Lock()

    def get(self, read: Callable[[], Value]) -> Value:
        """Return the value, read again if it is too old; if reading fails, return the last one.

        The failure is not reported here: other users of the same files report it.
        """
        with self._lock:
            if time.monotonic() - self._looked_s >= self._every_s:
                self._looked_s = time.monotonic()
                with suppress(Misuse, CorruptLog, OSError):
                    self._value = read()
            return self._value

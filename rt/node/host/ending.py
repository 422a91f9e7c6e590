"""Ending: how a node stops, on request or because of an error."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from typing import Final

from rt.errors import RtError, spoken

_log: Final = logging.getLogger("rt.node")


class Ending:
    """Ending: records that a node has ended, because it was stopped or one of its threads failed.

    Threads: any thread may call any method.
        failure: set before `_over` is done; reliable once `wait` has returned True.
        _over: a future, done once.
    """

    def __init__(self, halt: Callable[[], None], about: str = "") -> None:
        """Prepare.

        Args:
            halt: called on an error; stops the node's work without waiting for any thread.
            about: prefix of the log line about the error.
        """
        self.failure: Exception | None = None  # the error that ended the node
        self._halt = halt
        self._about = about
        self._over: Future[None] = Future()

    def guarded(self, work: Callable[[], None]) -> None:
        """Run some of the node's work; an error stops the node.

        An error of an unexpected type is raised as well.
        """
        try:
            work()
        except (RtError, OSError) as error:
            self.fail(error)
        except Exception as error:  # a node that half works would accept data and never merge it
            self.fail(error)
            raise

    def fail(self, error: Exception) -> None:
        """Stop the node because of this error, unless another error has stopped it."""
        if self.failure is not None:
            return
        is_internal = not isinstance(error, RtError | OSError)
        kind = f"internal error: {type(error).__name__}: " if is_internal else ""
        _log.critical("%sthis node stops: %s%s", self._about, kind, spoken(error))
        self.failure = error
        self._halt()
        self.finish()

    def finish(self) -> None:
        """Record that the node has stopped. Idempotent."""
        with suppress(InvalidStateError):
            self._over.set_result(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the node has stopped or failed; return False if the time ran out first."""
        return bool(wait([self._over], timeout_s).done)

"""Children: the processes that the demo and `rt up` start, and how they end."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Final, Self

from rt.cli.process.parent import PARENT_VARIABLE
from rt.errors import RtError

_STOP_S: Final = 15.0
_TAIL_BYTES: Final = 2000
_INTERRUPTING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Child:
    """One `rt` command in a process of its own; its stderr is kept for an error message."""

    def __init__(self, name: str, arguments: Sequence[str], prefix: Sequence[str] = ()) -> None:
        """Start it.

        Args:
            name: What an error calls it.
            arguments: Its arguments to `rt`.
            prefix: A command that runs it, such as `nice -n 5` or `ip netns exec NAME`.
        """
        self.name = name
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "rt", *arguments],
            env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
            stdin=subprocess.PIPE,  # closes when we end, even if killed
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # ctrl-C is for the parent, which stops its children in order
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def first_line(self, pattern: str) -> re.Match[str]:
        """Wait for its first line and match it.

        Raises:
            RtError: The line does not match; the message has the end of its stderr.
        """
        line = self._process.stdout.readline() if self._process.stdout else ""
        found = re.search(pattern, line)
        if found is None:
            self._process.kill()
            self._process.wait()
            raise RtError(f"{self.name} did not start: {self.last_errors()}")
        return found

    def wait(self) -> None:
        """Wait for it to end; `RtError` says how and why if it failed."""
        if self._process.wait():
            raise RtError(f"{self.name} {self.ending()}")

    def ending(self) -> str:
        """Return how it ended and, unless a signal ended it, the last line that it said."""
        outcome = self.outcome()
        if (self._process.returncode or 0) < 0:
            return outcome  # what it logged before is not why
        return f"{outcome}: {self.last_errors().splitlines()[-1]}"

    def outcome(self) -> str:
        """Return how it ended: `was ended by SIGKILL`, `ended with 70`; "" while it runs."""
        code = self._process.poll()
        if code is None:
            return ""
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"

    def kill(self) -> None:
        """End it as a power cut would, without a chance to tidy up."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ask it to end, and kill it if it does not within 15 s."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._errors.close()

    def last_errors(self) -> str:
        """Return the end of its stderr."""
        if self._errors.closed:
            return "it was stopped"
        self._errors.seek(0, 2)
        self._errors.seek(max(0, self._errors.tell() - _TAIL_BYTES))
        return self._errors.read().decode(errors="replace").strip() or "it gave no reason"


class Children:
    """Processes that are stopped in reverse order of their start, whatever happens."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def start(self, name: str, *arguments: str, prefix: Sequence[str] = ()) -> Child:
        """Start `rt` with these arguments."""
        with _undisturbed():
            child = Child(name, arguments, prefix)
            self._children.append(child)
        return child

    def drop(self, child: Child) -> None:
        """Release a child that has ended."""
        self._children.remove(child)
        child.stop()

    def check(self) -> None:
        """Raise `RtError`, with the end of its stderr, if a child has ended."""
        for child in self._children:
            if not child.running:
                child.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        with ExitStack() as undo:  # carries on with the others if one is interrupted or fails
            for child in self._children:
                undo.callback(child.stop)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Delay signals until the block is done: a process that was not recorded would run for ever.

    They are not blocked, since a child would inherit that. Only the main thread receives any.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    taken = [each for each in _INTERRUPTING if callable(signal.getsignal(each))]
    before = [signal.signal(each, lambda number, _frame: came.append(number)) for each in taken]
    try:
        yield
    finally:
        for each, handler in zip(taken, before, strict=True):
            signal.signal(each, handler)
    for number in came:
        signal.raise_signal(number)

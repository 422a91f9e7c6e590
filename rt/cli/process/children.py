"""Children: starts and stops the processes of the demo and of `rt up`."""

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
_NEWS_BYTES: Final = 64 * 1024
_INTERRUPTING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Child:
    """One `rt` command in a process of its own, whose stderr is kept for error messages."""

    def __init__(self, name: str, arguments: Sequence[str], prefix: Sequence[str] = ()) -> None:
        """Start the command.

        Args:
            name: The name of the process in error messages.
            arguments: The arguments of `rt`.
            prefix: A command to run it with, such as `nice -n 5` or `ip netns exec NAME`.
        """
        self.name = name
        self._shown = 0  # bytes of its stderr that `news` has returned
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "rt", *arguments],
            env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
            stdin=subprocess.PIPE,  # closed when we end, even if we are killed
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # ctrl-C is for the parent, which stops its children in order
        )

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Return whether the process is running."""
        return self._process.poll() is None

    def first_line(self, pattern: str) -> re.Match[str]:
        """Wait for the first line that the process prints, and return its match with `pattern`.

        Raises:
            RtError: The line does not match; the message has the end of the process's stderr.
        """
        line = self._process.stdout.readline() if self._process.stdout else ""
        found = re.search(pattern, line)
        if found is None:
            self._process.kill()
            self._process.wait()
            raise RtError(f"{self.name} did not start: {self.last_errors()}")
        return found

    def wait(self) -> None:
        """Wait for the process to end; if it failed, raise `RtError`, which says how and why."""
        if self._process.wait():
            raise RtError(f"{self.name} {self.ending()}")

    def ending(self) -> str:
        """Return how the process ended and, if no signal ended it, the last line of its stderr."""
        outcome = self.outcome()
        if (self._process.returncode or 0) < 0:
            return outcome  # the last line is not the reason
        return f"{outcome}: {self.last_errors().splitlines()[-1]}"

    def outcome(self) -> str:
        """Return how the process ended, such as `was ended by SIGKILL` or `ended with 70`.

        Returns "" while it runs.
        """
        code = self._process.poll()
        if code is None:
            return ""
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"

    def kill(self) -> None:
        """Kill the process, which cannot clean up, as in a power cut; wait for its end."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Send SIGTERM to the process, and kill it if it has not ended within 15 s."""
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
        """Return the end of what the process has written to stderr, up to 2,000 bytes."""
        if self._errors.closed:
            return "it was stopped"
        start = max(0, os.fstat(self._errors.fileno()).st_size - _TAIL_BYTES)
        tail = os.pread(self._errors.fileno(), _TAIL_BYTES, start)
        return tail.decode(errors="replace").strip() or "it gave no reason"

    def news(self) -> list[str]:
        """Return the whole lines written to stderr since the last call, at most 64 KiB.

        Reading does not move the file's offset, at which the process continues to write.
        """
        found = os.pread(self._errors.fileno(), _NEWS_BYTES, self._shown)
        whole = found.rfind(b"\n") + 1
        if not whole and len(found) == _NEWS_BYTES:
            whole = len(found)  # a line without an end does not hide those after it
        self._shown += whole
        return found[:whole].decode(errors="replace").splitlines()


class Children:
    """Processes that are stopped in reverse order of their start, whatever happens."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def start(self, name: str, *arguments: str, prefix: Sequence[str] = ()) -> Child:
        """Start `rt` with these arguments in a process; the parameters are those of `Child`."""
        with deferring_signals():
            child = Child(name, arguments, prefix)
            self._children.append(child)
        return child

    def drop(self, child: Child) -> None:
        """Remove a child that has ended, and close its files."""
        self._children.remove(child)
        child.stop()

    def check(self) -> None:
        """Raise `RtError` with the last line of the child's stderr if a child has failed."""
        for child in self._children:
            if not child.running:
                child.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        with ExitStack() as undo:  # stops the others even if stopping one fails or is interrupted
            for child in self._children:
                undo.callback(child.stop)


@contextmanager
def deferring_signals() -> Iterator[None]:
    """Delay signals until the block ends, so that a signal cannot separate two steps of a caller.

    Signals are deferred, not blocked, since a child process would inherit the blocked mask. Does
    nothing outside of the main thread, to which Python delivers signals.
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

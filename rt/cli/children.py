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

from rt.cli.parent import PARENT_VARIABLE
from rt.errors import RtError

_STOP_S: Final = 15.0
_TAIL_BYTES: Final = 2000
_INTERRUPTING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Child:
    """One `rt` command in a process of its own; what it says on stderr is kept for the case."""

    def __init__(self, name: str, arguments: Sequence[str], prefix: Sequence[str] = ()) -> None:
        """Start it.

        Args:
            name: what to call it in an error.
            arguments: of `rt`.
            prefix: a command that runs it, such as `nice -n 5` or `ip netns exec NAME`.
        """
        self.name = name
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "rt", *arguments],
            env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
            stdin=subprocess.PIPE,  # ends with us, be we killed
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # ctrl-C is for the parent, who stops its children in order
        )

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def first_line(self, pattern: str) -> re.Match[str]:
        """Wait for its first line, which must match; `RtError` with its last words if not."""
        line = self._process.stdout.readline() if self._process.stdout else ""
        found = re.search(pattern, line)
        if found is None:
            self._process.kill()
            self._process.wait()
            raise RtError(f"{self.name} did not start: {self.last_words()}")
        return found

    def wait(self) -> None:
        """Wait for its end; `RtError` with its last words if it failed."""
        if code := self._process.wait():
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            raise RtError(f"{self.name} {how}: {self.last_words()}")

    def kill(self) -> None:
        """End it as a power cut would, with no chance to tidy up."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ask it to end, wait, and take no for an answer only so long."""
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

    def last_words(self) -> str:
        """What it said on stderr at the end."""
        if self._errors.closed:
            return "it was stopped"
        self._errors.seek(0, 2)
        self._errors.seek(max(0, self._errors.tell() - _TAIL_BYTES))
        return self._errors.read().decode(errors="replace").strip() or "it said nothing"


class Children:
    """Processes that are stopped in the opposite order of their start, whatever happens."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def start(self, name: str, *arguments: str, prefix: Sequence[str] = ()) -> Child:
        """Start `rt` with these arguments."""
        with _undisturbed():
            child = Child(name, arguments, prefix)
            self._children.append(child)
        return child

    def check(self) -> None:
        """Raise `RtError` with its last words if one that should run does not."""
        for child in self._children:
            if not child.running:
                child.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        with ExitStack() as undo:  # goes on with the others where one is interrupted or fails
            for child in self._children:
                undo.callback(child.stop)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Take a signal when what is done is done: a process that nobody knows of runs for ever.

    It is not blocked, for a child would inherit that. Only the main thread is interrupted by one.
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

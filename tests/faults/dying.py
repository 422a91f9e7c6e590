"""Runs `rt` in a process that kills itself at a chosen change of its files, in the middle of it."""

import builtins
import os
import signal
from multiprocessing import get_context

from rt.cli.program import rt

FORKS = get_context("forkserver")  # a program starts within milliseconds, with `rt` imported
FORKS.set_forkserver_preload(["tests.faults.dying"])
WRITES = ("write", "pwrite", "pwritev", "writev")
CHANGES = (
    "fsync", "fdatasync", "ftruncate", "mkdir", "replace", "rename", "link", "unlink", "remove",
    "rmdir", "open",
)  # fmt: skip


class Countdown:
    """Counts the changes of files, and kills the process in the middle of the chosen one."""

    def __init__(self, left):
        """Die at the change `left`; with 0, only count."""
        self.left, self.done = left, 0

    def install(self):
        """Watch the calls of the operating system that change files."""
        for name in (*WRITES, *CHANGES):
            setattr(os, name, self._watched(name, getattr(os, name)))
        builtins.open = self._opened(builtins.open)

    def _watched(self, name, call):
        def watched(*arguments, **named):
            if name == "open" and not [*arguments, *named.values()][1] & (os.O_CREAT | os.O_TRUNC):
                return call(*arguments, **named)
            if not self._is_due():
                return call(*arguments, **named)
            if name in WRITES:
                _write_half(call, *arguments)
            elif self.left % 2:
                call(*arguments, **named)
            raise AssertionError(os.kill(os.getpid(), signal.SIGKILL))

        return watched

    def _opened(self, call):
        def opened(file, mode="r", *arguments, **named):
            due = not mode.startswith("r") and self._is_due()
            found = call(file, mode, *arguments, **named)
            if due:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return opened

    def _is_due(self):
        self.done += 1
        return self.done == self.left


def _write_half(call, fd, data, *rest):
    if not isinstance(data, bytes | bytearray | memoryview):
        data = b"".join(data)
        call(fd, [data[: len(data) // 2]], *rest)
    else:
        call(fd, bytes(data)[: len(data) // 2], *rest)


def _run(arguments, left, said, done, stdin):
    """Be the program; note at the end how many changes there were."""
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, source in enumerate((os.open(stdin, os.O_RDONLY), out, out)):
        os.dup2(source, number)
    for name in [name for name in os.environ if name.startswith("RT_")]:
        del os.environ[name]
    countdown = Countdown(left)
    countdown.install()
    try:
        rt(arguments)
    finally:
        done.value = countdown.done


class Program:
    """A program `rt` that ends by itself, or is killed."""

    def __init__(self, home, *arguments, left=0, stdin=os.devnull):
        """Start it; what it says is appended to a file beside `home`."""
        self.arguments = [str(each) for each in arguments]
        self.said = f"{home}.said"
        with open(self.said, "a", encoding="utf-8") as file:
            file.write("\n")  # the last life may have ended within a line
        self._done = FORKS.Value("l", 0)
        self._process = FORKS.Process(
            target=_run, args=(self.arguments, left, self.said, self._done, str(stdin))
        )
        self._process.start()

    def wait(self, seconds=None):
        """Wait for its end, for this long if given; return the exit code, None if it runs."""
        self._process.join(seconds)
        return self._process.exitcode

    def kill(self):
        """Kill it, unless it has ended; return how it ended."""
        self._process.kill()
        return self.wait()

    @property
    def changes(self):
        """How many changes of files there were, once it has ended."""
        return self._done.value

    def words(self):
        """Return all that it has said, in all its lives."""
        with open(self.said, encoding="utf-8", errors="replace") as file:
            return file.read()

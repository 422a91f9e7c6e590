"""Forbids unit tests to start a process or open a connection; others are in tests/integration."""

import inspect
import sys
import threading
from contextlib import contextmanager, nullcontext

import pytest

from rt.net.authority.certificates import init_authority

FORBIDDEN = {
    "os.fork", "os.posix_spawn", "os.system", "socket.bind", "socket.connect", "subprocess.Popen",
}  # fmt: skip
# inotify_simple looks for its C library once a process, by running programs
ALLOWED_CALLERS = ("ctypes/util.py",)


class Guard:
    """An audit hook that refuses what a unit test must not do, in threads that the test started.

    Threads:
        Any thread that runs Python calls the hook, which only reads `earlier`.
    """

    def __init__(self):
        """Install the hook, switched off; it stays until the process ends."""
        self.earlier = None
        self.forbidden = FORBIDDEN  # the module's names are gone when the process ends
        sys.addaudithook(self._look)

    @contextmanager
    def on(self):
        """Refuse until the block ends, except in threads that earlier tests left behind."""
        self.earlier = set(threading.enumerate()) - {threading.current_thread()}
        try:
            yield
        finally:
            self.earlier = None

    def _look(self, event, _arguments):
        if event not in self.forbidden or (earlier := self.earlier) is None:
            return
        if threading.current_thread() not in earlier and not _is_allowed():
            raise AssertionError(f"{event}: such a test belongs in tests/integration")


def _is_allowed():
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_filename.endswith(ALLOWED_CALLERS):
            return True
        frame = frame.f_back
    return False


GUARD = Guard()


@pytest.fixture
def authority(tmp_path):
    """A directory with an authority that has issued nothing yet."""
    directory = str(tmp_path / "certs")
    init_authority(directory)
    return directory


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Apply the guard to every test of this folder, fixtures included."""
    is_here = item.nodeid.startswith("tests/unit/")  # pytest calls this hook for every folder
    with GUARD.on() if is_here else nullcontext():
        return (yield)

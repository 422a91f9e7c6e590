"""Settings for all tests: signals, deadlines, and which worker runs what in which order."""

import ast
import faulthandler
import functools
import gc
import os
import signal
import tempfile
from pathlib import Path

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from rt.net.authority.certificates import init_authority, issue
from rt.net.authority.identity import CertificateRole
from rt.net.loop.event_loop import EventLoop

# No deadline: a busy machine is not a fault of the code.
settings.register_profile("rt", deadline=None)
settings.load_profile("rt")

# A shell makes background jobs ignore SIGINT (nohup: SIGHUP), and programs inherit that: a test
# that interrupts one would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)

FAULTS_TIMEOUT_S = 1800
SPARK, SIM = "tests/spark", "tests/sim"
# Tests that wait go first; tests that only compute fill the gaps at the end.
ORDER = (
    SPARK, "tests/integration", "tests/faults", SIM, "tests/transcripts", "tests/unit"
)  # fmt: skip

# Files that take longest begin first, so that no worker is left with one of them at the end.
LONG = (
    "succession_heard", "standby", "outsiders", "bridge", "relay", "streams", "cluster_members",
    "session_owners", "repair", "cli_cluster", "founded", "web_page",
)  # fmt: skip


@pytest.fixture
def ram_path(tmp_path):
    """A directory in memory, if the system has one, since tests need no durable syncs."""
    if not os.path.isdir("/dev/shm"):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="rt-test-") as directory:
        yield Path(directory)


@pytest.fixture
def loop():
    """An event loop of the test's own, stopped at its end."""
    made = EventLoop()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def client_certificates(tmp_path_factory):
    """A directory with the certificates of a publisher and a subscriber."""
    directory = str(tmp_path_factory.mktemp("certs"))
    init_authority(directory)
    for role in (CertificateRole.PUBLISHER, CertificateRole.SUBSCRIBER):
        issue(directory, role.value, role)
    return directory


@pytest.fixture
def certified(client_certificates, monkeypatch):
    """Have commands present a subscriber's certificate to nodes, unless they name another."""
    monkeypatch.setenv("RT_CERTS", client_certificates)
    monkeypatch.setenv("RT_IDENTITY", "subscriber")


@pytest.hookimpl(tryfirst=True)  # before pytest-timeout reads the marks
def pytest_collection_modifyitems(items):
    """Give long tests a longer deadline than pyproject.toml does; run tests that wait first."""
    for item in items:
        if item.get_closest_marker("faults") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(FAULTS_TIMEOUT_S))
    items.sort(key=lambda item: _place(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect tests with garbage collection off, which would traverse all of them repeatedly."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish():
    """Exempt the collected tests from garbage collection, which would traverse them in vain."""
    gc.collect()
    gc.freeze()


def _place(nodeid):
    path = nodeid.partition("::")[0]
    is_long = Path(path).stem.removeprefix("test_") in LONG
    return ORDER.index("/".join(path.split("/")[:2])), not shares_spark(nodeid), not is_long


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """End the process if a test is still running after twice its deadline.

    A test that has failed at its deadline may wait forever for a child process as it ends.
    """
    marker = item.get_closest_marker("timeout")
    timeout_s = float(marker.args[0] if marker else item.config.getini("timeout"))
    stderr = item.config.stash.get(fault_handler_stderr_fd_key, 2)
    faulthandler.dump_traceback_later(2 * timeout_s, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def shares_spark(nodeid):
    """Return whether a test uses the JVM of the fixture `spark`."""
    path, _, test = nodeid.partition("::")
    return path.startswith(SPARK) and test.partition("[")[0] in _with_spark(path)


@functools.cache
def _with_spark(path):
    """Return the names of a file's functions that have the argument `spark`."""
    text = Path(__file__).parent.parent.joinpath(path).read_text(encoding="utf-8")
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return {each.name for each in functions if any(a.arg == "spark" for a in each.args.args)}


class FileScheduling(LoadScopeScheduling):
    """Runs all tests of a file on one worker, so that its fixtures are made once.

    Tests that share Spark's JVM run on one worker too. Tests of the simulation are spread over all
    workers, since they share no fixture and a file of them takes minutes.
    """

    def _split_scope(self, nodeid):
        if shares_spark(nodeid):
            return SPARK
        return nodeid if nodeid.startswith(SIM) else nodeid.split("::")[0]

    def remove_node(self, node):
        """Return the test during which a worker ended, and do not give it to another worker."""
        for unit in self.assigned_work[node].values():
            for nodeid, is_done in unit.items():
                if not is_done:
                    unit[nodeid] = True
                    super().remove_node(node)  # gives the rest to other workers
                    return nodeid
        return super().remove_node(node)


@pytest.hookimpl(trylast=True)
def pytest_xdist_make_scheduler(config, log):
    """Make the scheduler, which keeps the order of collection."""
    config.option.loadscopereorder = False
    return FileScheduling(config, log)

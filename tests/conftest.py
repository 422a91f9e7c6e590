"""Settings for all tests: signals, deadlines, and which worker runs what in which order."""

import faulthandler
import functools
import re
import signal
from pathlib import Path

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from rt.net.authority.certificates import init_authority, issue
from rt.net.authority.identity import CertificateRole

# No deadline: a busy machine is not a fault of the code.
settings.register_profile("rt", deadline=None)
settings.load_profile("rt")

# A shell makes background jobs ignore SIGINT (nohup: SIGHUP), and programs inherit that: a test
# that interrupts one would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)

FAULTS_TIMEOUT_S = 1800
SPARK = "tests/spark"
# Tests that wait go first; tests that only compute fill the gaps at the end.
ORDER = (
    SPARK, "tests/integration", "tests/faults", "tests/sim", "tests/transcripts", "tests/unit"
)  # fmt: skip


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
    """Have commands that ask nodes present a subscriber's certificate, unless they say whose."""
    monkeypatch.setenv("RT_CERTS", client_certificates)
    monkeypatch.setenv("RT_IDENTITY", "subscriber")


@pytest.hookimpl(tryfirst=True)  # before pytest-timeout reads the marks
def pytest_collection_modifyitems(items):
    """Give long tests longer than `timeout` in pyproject.toml; start what waits first."""
    for item in items:
        if item.get_closest_marker("faults") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(FAULTS_TIMEOUT_S))
    items.sort(key=lambda item: _place(item.nodeid))


def _place(nodeid):
    folder = ORDER.index("/".join(nodeid.split("/")[:2]))
    return folder, not starts_spark(nodeid.split("::")[0])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """End the process of a test that still waits after its deadline has failed it.

    It may wait for a child, without end, on its way out.
    """
    marker = item.get_closest_marker("timeout")
    timeout_s = float(marker.args[0] if marker else item.config.getini("timeout"))
    stderr = item.config.stash.get(fault_handler_stderr_fd_key, 2)
    faulthandler.dump_traceback_later(2 * timeout_s, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@functools.cache
def starts_spark(path):
    """Return whether tests of a file start a JVM, or share the one of the fixture `spark`."""
    if not path.startswith(SPARK):
        return False
    text = Path(__file__).parent.parent.joinpath(path).read_text(encoding="utf-8")
    return bool(re.search(r"mark\.spark\b|^def \w+\(.*\bspark\b", text, re.MULTILINE))


class FileScheduling(LoadScopeScheduling):
    """Runs a file on one worker, so its fixtures are made once; and all of Spark, for one JVM."""

    def _split_scope(self, nodeid):
        path = nodeid.split("::")[0]
        return SPARK if starts_spark(path) else path

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

"""Settings for all tests: signals, deadlines, and which worker runs what in which order."""

import signal

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

# No deadline: a busy machine is not a fault of the code.
settings.register_profile("rt", deadline=None)
settings.load_profile("rt")

# A shell lets a job in the background ignore SIGINT (nohup: SIGHUP), and programs inherit that: a
# test that interrupts one would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)

FAULTS_TIMEOUT_S = 1800
SPARK = "tests/spark"
# What waits goes first; what only computes fills the gaps at the end.
ORDER = (SPARK, "tests/integration", "tests/faults", "tests/sim", "tests/unit")


@pytest.hookimpl(tryfirst=True)  # before pytest-timeout reads the marks
def pytest_collection_modifyitems(items):
    """Give long tests longer than `timeout` in pyproject.toml; start what waits first."""
    for item in items:
        if item.get_closest_marker("faults") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(FAULTS_TIMEOUT_S))
    items.sort(key=lambda item: ORDER.index("/".join(item.nodeid.split("/")[:2])))


class FileScheduling(LoadScopeScheduling):
    """Runs a file on one worker, so its fixtures are made once; and all of Spark, for one JVM."""

    def _split_scope(self, nodeid):
        path = nodeid.split("::")[0]
        return SPARK if path.startswith(SPARK) else path


@pytest.hookimpl(trylast=True)
def pytest_xdist_make_scheduler(config, log):
    """Make it, in the order of the collection."""
    config.option.loadscopereorder = False
    return FileScheduling(config, log)

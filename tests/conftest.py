"""Settings for all tests."""

import signal

import pytest
from hypothesis import settings

# No deadline: a busy machine is not a fault of the code.
settings.register_profile("rt", deadline=None)
settings.load_profile("rt")

# A shell lets a job in the background ignore SIGINT (nohup: SIGHUP), and programs inherit that: a
# test that interrupts one would wait for ever.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

FAULTS_TIMEOUT_S = 1800


@pytest.hookimpl(tryfirst=True)  # before pytest-timeout reads the marks
def pytest_collection_modifyitems(items):
    """Give the long tests a longer deadline than `timeout` in pyproject.toml."""
    for item in items:
        if item.get_closest_marker("faults") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(FAULTS_TIMEOUT_S))

"""DiskGuard: logs once when it refuses data, and once when it accepts data again."""

import logging

import pytest

from rt.errors import Refused
from rt.node.resources.disk_guard import DiskGuard


def test_a_disk_that_takes_data_again_is_a_warning_and_no_error(tmp_path, caplog):
    """An error wakes an operator, and there is nothing to repair."""
    guard = DiskGuard("n1", str(tmp_path), 1 << 62)
    with pytest.raises(Refused, match="takes data again when there is room"):
        guard.demand_room()
    guard.reserve = 0
    guard.measure()
    guard.demand_room()
    assert [(each.levelno, "takes new data" in each.message) for each in caplog.records] == [
        (logging.ERROR, False),
        (logging.WARNING, True),
    ]

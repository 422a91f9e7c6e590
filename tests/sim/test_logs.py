"""Logs on a disk that forgets: what a failed sync left in memory must be written again to count."""

from random import Random

import pytest
from logs import TIME_NS, make_frame

from rt.errors import DiskFailed
from rt.format.manifest import SESSION, LogIdentity
from rt.limits import INDEX_EVERY_BYTES
from rt.log.files.directory import LogDirectory
from rt.log.files.indexing import rebuild_index
from rt.log.write.appender import Appender
from rt.position import START

from .disk import SimDisk

JFK = LogIdentity(SESSION, "flights", "jfk", "0" * 32, TIME_NS)


def opened(disk: SimDisk) -> Appender:
    """Open the log as a copy does: recovered, and synced before anything of it counts."""
    appender = Appender(disk, "jfk", JFK)
    appender.recover(own=False)
    appender.sync()
    return appender


def add(appender: Appender, size: int = 10) -> None:
    """Append one frame."""
    if not appender.is_open:
        appender.begin_file(appender.end.next_file() if appender.manifest.order else START)
    frame = make_frame(appender.end, [b"." * size], sequence=appender.next_number)
    after = appender.walk.copy()
    after.step(frame.header)
    appender.append(frame.parts, [frame.header], after)


def fail_syncs(operation: str) -> None:
    """Fail every sync."""
    if operation == "sync":
        raise OSError(5, "Input/output error")


def holds(appender: Appender) -> tuple[object, ...]:
    """Return what a log reports about itself."""
    return appender.end, appender.next_number, tuple(appender.manifest.rolled.values())


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("size", [10, INDEX_EVERY_BYTES])
@pytest.mark.parametrize("rolls", [False, True])
def test_what_a_failed_sync_left_of_a_log_is_written_again_before_it_counts(
    seed: int, size: int, rolls: bool
) -> None:
    """The kernel considers the pages clean: a power cut loses what a restart reads and syncs."""
    disk = SimDisk(Random(seed), cleans_failed_pages=True)
    appender = opened(disk)
    for _ in range(3):
        add(appender, size)
    appender.sync()
    appender.close()  # its index names only durable frames
    appender = opened(disk)
    add(appender, size)
    left = [int(rolls)]  # the sync of the file succeeds, and that of the line does not

    def fault(operation: str) -> None:
        left[0] -= operation == "sync"
        if left[0] < 0:
            fail_syncs(operation)

    disk.fault = fault
    with pytest.raises(DiskFailed):
        appender.roll(TIME_NS) if rolls else appender.sync()
    disk.kill()  # and the service manager starts it again
    before = holds(opened(disk))
    assert before[1] == 4
    disk.cut_power()
    assert holds(opened(disk)) == before


def test_an_index_that_is_rebuilt_names_no_frame_that_a_power_cut_takes() -> None:
    """Readers take the last entry as proof that everything before it is durable."""
    disk = SimDisk(Random(1), cleans_failed_pages=True)
    appender = opened(disk)
    for _ in range(3):
        add(appender, INDEX_EVERY_BYTES)
    disk.fault = fail_syncs
    with pytest.raises(DiskFailed):
        appender.sync()
    disk.kill()
    log = LogDirectory("jfk", disk)
    log.refresh()
    assert rebuild_index(disk, log, START) == 3
    before = holds(opened(disk))
    disk.cut_power()
    assert holds(opened(disk)) == before

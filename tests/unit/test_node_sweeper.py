"""NodeSweeper: what happens when it fails."""

from types import SimpleNamespace

from replicator_host import eventually

from rt.errors import DiskFailed
from rt.format.manifest import SESSION, Archived, LogIdentity, Rolled
from rt.log.files.archived import MERGED
from rt.log.files.disk import OsDisk
from rt.log.write.appender import Appender
from rt.net.loop.event_loop import EventLoop
from rt.node.retain.sweep import Sweep
from rt.node.retain.sweeper import NodeSweeper
from rt.position import START, Position


def test_a_sync_that_fails_in_the_sweeper_ends_the_node():
    """A node whose retention had ended went on taking data, with one line in its log."""
    failures = []

    def manifest():
        raise DiskFailed(5, "Input/output error")

    class Merged:
        directory = "out"
        identity = SimpleNamespace(merged=True)
        manifest = property(lambda _self: manifest())

    inputs = SimpleNamespace(every=list)
    sweeper = NodeSweeper(Sweep(OsDisk(), inputs, fold_s=0))
    loop = EventLoop()
    sweeper.start(loop, failures.append)
    sweeper.turn(Merged(), 0)
    assert eventually(lambda: failures)
    assert isinstance(failures[0], DiskFailed)
    sweeper.stop()
    loop.stop()


def test_a_state_from_before_a_reset_says_nothing_of_the_next_log(tmp_path):
    """Files of the next log would be emptied that no node has merged."""
    log = Appender(OsDisk(), str(tmp_path), LogIdentity(SESSION, "flights", "jfk", "1" * 32, 0))
    log.begin_file(START)
    log.roll(1)
    inputs = SimpleNamespace(
        every=lambda: [SimpleNamespace(session="jfk", appender=log, swept=(START, 0))],
        begun_after=lambda _name: 7,
    )
    sweep, far = Sweep(OsDisk(), inputs, fold_s=0), {"jfk": Position.of(9, 0, 0)}
    sweep.sweep_inputs(far, 6)
    assert not log.manifest.archived
    sweep.sweep_inputs(far, 7)
    assert list(log.manifest.archived) == [START]
    log.close()


def test_a_file_that_ends_after_all_of_it_was_swept_is_archived(tmp_path):
    """Its publisher has closed; the file was kept until the session grew again."""
    log = Appender(OsDisk(), str(tmp_path), LogIdentity(SESSION, "flights", "jfk", "1" * 32, 0))
    inbox = SimpleNamespace(session="jfk", appender=log, swept=(START, 0))
    inputs = SimpleNamespace(every=lambda: [inbox], begun_after=lambda _name: 0)
    sweep, second = Sweep(OsDisk(), inputs, fold_s=0), START.next_file()
    log.begin_file(START)
    log.roll(1)
    log.begin_file(second)
    sweep.sweep_inputs({"jfk": second}, 1)
    assert list(log.manifest.archived) == [START]
    log.roll(2)
    sweep.sweep_inputs({"jfk": second}, 1)
    assert list(log.manifest.archived) == [START, second]
    log.close()


def test_a_file_before_those_that_the_publisher_archived_is_archived_too(tmp_path):
    """A node that had been away skipped them, and kept the older file for ever."""
    log = Appender(OsDisk(), str(tmp_path), LogIdentity(SESSION, "flights", "jfk", "1" * 32, 0))
    inbox = SimpleNamespace(session="jfk", appender=log, swept=(START, 0))
    inputs = SimpleNamespace(every=lambda: [inbox], begun_after=lambda _name: 0)
    kept, skipped, active = (Position.of(0, number, 0) for number in range(3))
    log.begin_file(kept)
    log.roll(1)
    log.skip_archived(Rolled(skipped, 64, 0, 1, 1, 1, 1), Archived(skipped, 1, MERGED))
    log.begin_file(active)
    Sweep(OsDisk(), inputs, fold_s=0).sweep_inputs({"jfk": active}, 1)
    assert set(log.manifest.archived) == {kept, skipped}
    log.close()

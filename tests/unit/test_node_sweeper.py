"""NodeSweeper: what happens when it fails."""

from types import SimpleNamespace

from replicator_host import eventually

from rt.errors import DiskFailed
from rt.log.disk import OsDisk
from rt.node.sweep import Sweep
from rt.node.sweeper import NodeSweeper


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
    sweeper.start(failures.append)
    sweeper.turn(Merged(), 0)
    assert eventually(lambda: failures)
    assert isinstance(failures[0], DiskFailed)
    sweeper.stop()

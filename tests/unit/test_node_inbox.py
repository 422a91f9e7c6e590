"""Inboxes: the copies of sessions on a node, filled by one connection each, synced by any."""

import errno
import os
import threading

import pytest
from faulty import FaultyDisk

from rt.manifest import SESSION, Identity
from rt.node_inbox import Inboxes
from rt.position import START

PATIENCE_S = 10


class NoGuard:
    """There is always room."""

    def demand_room(self):
        pass


class NoBell:
    """Nobody waits."""

    def set(self):
        pass


def opened(tmp_path, disk=None, told=lambda _end, _session: None):
    """Return the inboxes of a node that has none yet."""
    disk = disk or FaultyDisk()
    return Inboxes(disk, str(tmp_path / "in"), "flights", told, NoGuard(), alone=False)


def identity(name="jfk"):
    """Return the log that a publisher would push."""
    return Identity(SESSION, "flights", name, "1" * 32, 0)


def begun(work):
    """Return a thread that is at work."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_sync_that_fails_in_a_connection_lets_the_syncer_end(tmp_path):
    """A node whose disk fails has to stop, and waits for its syncer when it does."""
    disk = FaultyDisk()
    inboxes = opened(tmp_path, disk)
    inbox = inboxes.claim(identity(), "p", NoBell(), START)
    inbox.appender.begin_file(START)

    def step(call):
        if call == "sync":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.step = step
    inbox.written()
    with pytest.raises(OSError, match="Input/output"):
        inboxes.settle()
    inbox.written()
    assert not inboxes.settle(), "nothing is synced, and so acknowledged, after it"
    inboxes.stop()
    rounds = []
    syncer = begun(lambda: inboxes.run(lambda: rounds.append(1)))
    syncer.join(PATIENCE_S)
    assert not syncer.is_alive()
    assert not rounds

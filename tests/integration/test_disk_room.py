"""The disk of a session: a limit that refuses or waits, and the lifetime of a local queue."""

import errno
import os
import shutil
import threading
import time
from contextlib import closing

import pytest
from archive_cluster import STREAM, ArchiveCluster, held_bytes

import rt
from rt.errors import Misuse, SessionFull
from rt.log.files.archived import given_up_files
from rt.log.files.directory import LogDirectory
from rt.log.notify.confirmations import FILE_NAME, Confirmations, ConfirmationsFile
from rt.position import Position

PATIENCE_S = 60
KIB = 1 << 10
SMALL = {"file_bytes_max": 64 * KIB}


def publisher(root, session="jfk", limit=None, **settings):
    """A publisher of small files."""
    writer = rt.WriterSettings(**{**SMALL, **settings})
    return rt.Publisher(root, stream=STREAM, session=session, writer=writer, disk_limit=limit)


def fill(full):
    """Publish until that raises."""
    for _ in range(10_000):
        full.publish(bytes(KIB))


def eventually(check):
    """Wait until a condition holds."""
    end_s = time.monotonic() + PATIENCE_S
    while not check() and time.monotonic() < end_s:
        time.sleep(0.02)
    return check()


def test_a_full_session_refuses_and_goes_on_once_there_is_room(tmp_path):
    """Nothing of what was refused is taken, and what was taken stays."""
    limit = rt.DiskLimit(256 * KIB)
    with publisher(tmp_path, limit=limit) as full:
        with pytest.raises(SessionFull, match=r"hold \d+ of 262144 bytes") as refused:
            fill(full)
        assert isinstance(refused.value, OSError)
        taken = full.next_sequence
        assert 200 < taken < 256 + 256 / 8
        directory = tmp_path / STREAM / "jfk"
        assert held_bytes(directory) <= limit.bytes + 64 * KIB
        end = full.flush("synced").position
        ConfirmationsFile(str(directory)).write(Confirmations(end, end, end, end, end))
        assert eventually(lambda: held_bytes(directory) < 128 * KIB)
        assert full.publish(bytes(KIB)) == taken
    found = rt.Subscriber(tmp_path, stream=STREAM, session="jfk", follow=False, on_gap="skip")
    assert [each.sequence for each in found][-1] == taken


def test_a_full_session_blocks_until_there_is_room_or_time_is_up(tmp_path):
    """Back pressure, for those who would rather wait."""
    directory = tmp_path / STREAM / "jfk"
    limit = rt.DiskLimit(128 * KIB, on_full="block", timeout_s=0.1)
    with publisher(tmp_path, limit=limit) as full, pytest.raises(SessionFull):
        fill(full)
    with publisher(tmp_path, limit=rt.DiskLimit(128 * KIB, on_full="block")) as full:
        done = []
        thread = threading.Thread(target=lambda: done.append(full.publish_many([bytes(KIB)] * 9)))
        thread.start()
        thread.join(0.2)
        assert not done
        end = full.flush("synced").position
        ConfirmationsFile(str(directory)).write(Confirmations(end, end, end, end, end))
        thread.join(PATIENCE_S)
        assert len(done[0]) == 9


@pytest.mark.parametrize("linger_s", [0.0, 60.0])
def test_a_session_holds_as_many_messages_as_it_may_and_no_more(tmp_path, linger_s):
    """Some systems promise their consumers a number; bytes say nothing about it."""
    directory = tmp_path / STREAM / "jfk"
    limit = rt.DiskLimit(1 << 20, messages=100)
    options = {"disk_limit": limit, "batching": rt.Batching(linger_s=linger_s)}
    with rt.Publisher(tmp_path, stream=STREAM, session="jfk", **options) as full:
        for round_ in range(1, 4):
            with pytest.raises(SessionFull, match="hold 100 of 100 messages") as refused:
                fill(full)
            assert (refused.value.held, refused.value.unit) == (100, "messages")
            assert full.next_sequence == 100 * round_
            with pytest.raises(SessionFull):
                full.publish_many([b"x"] * 2)
            end = full.flush("synced").position
            ConfirmationsFile(str(directory)).write(Confirmations(end, end, end, end, end))
            assert eventually(lambda: held_bytes(directory) == 0)
    with rt.Publisher(tmp_path, stream=STREAM, session="jfk", disk_limit=limit) as again:
        assert again.publish_many([b"x"] * 60) == range(300, 360)
        with pytest.raises(SessionFull, match="hold 60 of 100 messages"):
            again.publish_many([b"x"] * 41)
        assert again.publish_many([b"x"] * 40) == range(360, 400)
    with rt.Publisher(tmp_path, stream=STREAM, session="jfk", disk_limit=limit) as later:
        with pytest.raises(SessionFull, match="hold 100 of 100 messages"):
            later.publish(b"what another run wrote counts")
        end = Position.of(9, 0, 0)
        ConfirmationsFile(str(directory)).write(Confirmations(end, end, end, end, end))
        assert eventually(lambda: held_bytes(directory) == 0)
        assert later.publish(b"x") == 400


def test_limits_of_messages_on_the_disk_and_in_flight_hold_together(tmp_path):
    """The smaller one counts, for each frame."""
    limit = rt.DiskLimit(1 << 20, messages=30)
    batching = rt.Batching(linger_s=60)
    with rt.Publisher(
        tmp_path, stream=STREAM, session="jfk", disk_limit=limit, batching=batching
    ) as both:
        both.limit_flight(lambda _messages, _size: (20, 1 << 20))
        with pytest.raises(SessionFull, match="hold 30 of 30"):
            fill(both)
        assert both.next_sequence == 30


def test_a_limit_of_messages_that_cannot_hold_is_refused():
    """Whole files are dropped, and a limit of none lets nothing in."""
    with pytest.raises(Misuse, match="a limit of messages drops none; use error or block"):
        rt.DiskLimit(1 << 20, "drop_oldest", messages=5)
    with pytest.raises(Misuse, match="messages is 0"):
        rt.DiskLimit(1 << 20, messages=0)


def test_a_blocked_publisher_can_be_closed(tmp_path):
    """A program that ends must not hang."""
    full = publisher(tmp_path, limit=rt.DiskLimit(64 * KIB, on_full="block"))
    ended = []

    def publish():
        with pytest.raises(rt.Stopped):
            fill(full)
        ended.append(True)

    thread = threading.Thread(target=publish)
    thread.start()
    assert eventually(lambda: held_bytes(tmp_path / STREAM / "jfk") > 48 * KIB)
    full.close()
    thread.join(PATIENCE_S)
    assert ended


def test_a_connected_publisher_gets_room_as_the_nodes_merge(tmp_path):
    """A session that is shipped never needs more than its limit for long."""
    with ArchiveCluster(tmp_path / "cluster") as cluster:
        clients = os.path.join(cluster.root, "clients.toml")
        with rt.connect(clients, root=tmp_path / "client") as client:
            limited = client.publisher(
                "limited", writer=rt.WriterSettings(**SMALL),
                disk_limit=rt.DiskLimit(256 * KIB, on_full="block", timeout_s=PATIENCE_S),
            )  # fmt: skip
            for _ in range(40):
                limited.publish_many([bytes(KIB)] * 24)
            limited.flush("merged", PATIENCE_S)
            assert held_bytes(tmp_path / "client" / STREAM / "limited") < 512 * KIB
            with pytest.raises(Misuse, match="are for sessions that are not shipped"):
                client.publisher("kept", writer=rt.WriterSettings(keep_s=1.0))


def test_a_limit_larger_than_the_disk_is_refused(tmp_path):
    """The disk would be full first, and every process on it would notice."""
    with pytest.raises(Misuse, match=r"is more than the \d+ bytes of the file system"):
        publisher(tmp_path, limit=rt.DiskLimit(1 << 60))
    for wrong in ({"bytes": 10}, {"bytes": 1 << 20, "on_full": "drop"}):
        with pytest.raises(Misuse):
            rt.DiskLimit(**wrong)
    with pytest.raises(Misuse, match="keep_s and keep_bytes"):
        rt.WriterSettings(keep_s=-1.0)


def test_a_publisher_that_cannot_learn_how_large_the_disk_is_releases_its_session(
    tmp_path, monkeypatch
):
    """It had a live writer until the program ended, and another attempt was refused."""

    def fails(_directory):
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(os, "statvfs", fails)
        with pytest.raises(OSError, match="input/output error"):
            publisher(tmp_path, limit=rt.DiskLimit(256 * KIB))
    publisher(tmp_path).close()


def test_a_local_queue_gives_up_its_oldest_files(tmp_path):
    """Its readers meet a gap that says why, and go on after it."""
    with publisher(tmp_path, keep_bytes=128 * KIB) as local:
        for _ in range(20):
            local.publish_many([bytes(KIB)] * 24)
        directory = tmp_path / STREAM / "jfk"
        assert eventually(lambda: held_bytes(directory) <= 192 * KIB)
    gaps = []
    reader = rt.Subscriber(
        tmp_path, stream=STREAM, session="jfk", start=Position(0), follow=False,
        on_gap="notify", on_event=gaps.append,
    )  # fmt: skip
    assert [message.sequence for message in reader][-1] == 479
    assert [each.reason for each in gaps if isinstance(each, rt.Gap)] == ["limit"]


def test_a_session_that_is_shipped_gives_up_nothing_by_its_own_rule(tmp_path):
    """What the nodes lack is all that there is of it; what they have may be half written."""
    directory = tmp_path / STREAM / "jfk"
    with publisher(tmp_path) as first:
        first.publish(b"x")
        end = first.flush("synced").position
    ConfirmationsFile(str(directory)).write(Confirmations(received=end))
    torn = tmp_path / "torn" / STREAM / "jfk"
    shutil.copytree(directory, torn)
    with open(torn / FILE_NAME, "r+b") as file:
        file.truncate(20)
    keep = {"keep_bytes": 64 * KIB, "keep_s": 0.001}
    with publisher(tmp_path, **keep) as local, publisher(tmp_path / "torn", **keep) as other:
        for each in (local, other):
            for _ in range(10):
                each.publish_many([bytes(KIB)] * 24)
            each.flush("synced")
        time.sleep(2.5)  # the syncing thread looks about once a second
        assert held_bytes(directory) > 200 * KIB
        assert held_bytes(torn) > 200 * KIB


def test_files_are_given_up_by_age_and_by_size(tmp_path):
    """Oldest first, and never the one that is written."""
    with publisher(tmp_path) as local:
        for _ in range(6):
            local.publish_many([bytes(KIB)] * 48)
        local.flush("synced")
    with closing(LogDirectory(str(tmp_path / STREAM / "jfk"))) as log:
        log.refresh()
        known = log.manifest
    sizes = [known.rolled[file].end for file in known.order]
    later = max(line.at_ns for line in known.rolled.values()) + 10**9

    def given_up(**rules):
        lines = given_up_files(known, 0, later, **{"keep_s": 0.0, "keep_bytes": 0, **rules})
        return [line.file for line in lines], {line.reason for line in lines}

    assert given_up() == ([], set())
    assert given_up(keep_s=0.5) == (known.order, {"time"})
    assert given_up(keep_s=3600) == ([], set())
    assert given_up(keep_bytes=sum(sizes[2:])) == (known.order[:2], {"limit"})

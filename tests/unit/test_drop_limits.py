"""A session that drops its oldest messages, beside what else bounds, awaits or restores it."""

import os
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import pytest
from archive_cluster import STREAM, held_bytes
from faulty import FaultyDisk

import rt
from rt.client.flight import Flight, FlightLimit
from rt.client.receipts import Receipts
from rt.errors import LimitReached, MessagesDropped, SessionFull
from rt.log.notify.confirmations import Confirmations, ConfirmationsFile, Level
from rt.log.write.sending import sending
from rt.position import START, Position
from tests.replicator_host import eventually

KIB = 1 << 10
LIMIT = 512 * KIB
PATIENCE_S = 60
DROPS = rt.DiskLimit(LIMIT, on_full="drop_oldest", timeout_s=0)


def publisher(root, limit=DROPS):
    """Return a publisher without a pusher, which the test imitates."""
    return rt.Publisher(root, stream=STREAM, session="jfk", disk_limit=limit)


def directory_in(root):
    """Return the session's directory."""
    return str(root / STREAM / "jfk")


def fill(full, messages):
    """Publish so many KiB."""
    for _ in range(messages):
        full.publish(bytes(KIB))


def sent_to(root, bound):
    """Note what a pusher has begun to send: files before a position."""
    with sending(directory_in(root)) as mark:
        mark.write(bound, mark.limit)


def confirm(root, merged):
    """Note what the nodes have merged."""
    with closing(ConfirmationsFile(directory_in(root))) as confirmed:
        confirmed.write(Confirmations(merged, merged, merged, merged))


def gone(spans):
    """The numbers that spans cover."""
    return [number for each in spans for number in range(each.first, each.next)]


def test_a_call_larger_than_the_limit_goes_alone(tmp_path):
    """Whatever it held goes before; what was only begun to hold it does not count."""
    with publisher(tmp_path) as full:
        fill(full, 100)
        assert full.publish_many([bytes(KIB)] * 1000) == range(100, 1100)
        assert gone(full.dropped()) == list(range(100))
        fill(full, 1)
        assert held_bytes(directory_in(tmp_path)) <= LIMIT
        assert full.publish_many([bytes(KIB)] * 1000) == range(1101, 2101)
        assert gone(full.dropped()) == list(range(1101))


def test_what_is_kept_is_known_at_once_while_a_drop_waits_for_its_disk(tmp_path):
    """An event loop asks, and served no connection until the drop had made its syncs."""
    asked = []

    def step(_call):
        if full is not None and full.drops and not asked:
            with ThreadPoolExecutor(1) as other:
                asked.append(other.submit(full.kept, first).result(PATIENCE_S))

    full = None
    disk = FaultyDisk(step)
    with rt.Publisher(tmp_path, stream=STREAM, session="jfk", disk_limit=DROPS, disk=disk) as made:
        fill(made, 1)
        first = made.flush("written").position
        full = made
        fill(made, 600)
        assert gone(made.drops)
        assert asked == [START], "the line of the file was not written yet, and is not waited for"
        full = None


def test_a_call_that_what_was_sent_leaves_no_room_for_is_refused(tmp_path):
    """Without a file for each time that it asks."""
    with publisher(tmp_path) as full:
        fill(full, 100)
        end = full.flush("written").position
    sent_to(tmp_path, end.file + 1)
    with publisher(tmp_path) as full:  # in files of its own
        fill(full, 100)
        with pytest.raises(SessionFull):
            full.publish_many([bytes(KIB)] * 450)
        assert gone(full.dropped()) == list(range(100, 200))
        files = os.listdir(directory_in(tmp_path))
        with pytest.raises(SessionFull):
            full.publish_many([bytes(KIB)] * 450)
        assert os.listdir(directory_in(tmp_path)) == files
        full.publish_many([bytes(KIB)] * 300)


def test_the_files_stay_within_the_limit(tmp_path):
    """Frames, notices and columns included: a queue on a small device has no more."""
    rng = random.Random(5)
    most = 0
    with publisher(tmp_path) as full:
        for number in range(15_000):
            full.publish(bytes(rng.choice((0, 1, 200))), key=b"k")
            if number % 20 == 0:  # a frame has some 80 messages
                most = max(most, held_bytes(directory_in(tmp_path)))
    assert full.dropped()
    assert 0.8 * LIMIT < most <= LIMIT


def flight_of(full, merged, **limit):
    """Bound what a publisher has in flight; as a connected publisher does."""
    return Flight(
        FlightLimit(**limit, on_full="error"), lambda: full.taken,
        lambda: full.flush("written").position, merged,
        drops=lambda: full.drops, kept=full.kept,
    )  # fmt: skip


def test_what_was_dropped_is_no_longer_in_flight(tmp_path):
    """Otherwise a flight limit would wait for what no node will ever merge."""
    with publisher(tmp_path) as full:
        full.limit_flight(flight_of(full, lambda: START, messages=2000).admit)
        fill(full, 2500)
        for _ in range(3):
            full.publish_many([bytes(KIB)] * 1900)  # larger than the limit of the disk
        fill(full, 1)
        assert gone(full.dropped())[-1] > 8000 - 512


def test_what_was_dropped_is_not_in_flight_while_what_was_sent_before_it_is(tmp_path):
    """One node of three is up: nothing is merged, and the publisher goes on."""
    with publisher(tmp_path) as full:
        flight = flight_of(full, lambda: START, messages=1000)
        full.limit_flight(flight.admit)
        fill(full, 100)
        sent_to(tmp_path, full.flush("written").position.file + 1)
        fill(full, 3000)
        lost = gone(full.dropped())
        assert len(lost) > 2000
        assert 0 not in lost
        with pytest.raises(LimitReached):
            full.publish_many([b""] * 1000)


def test_a_message_that_was_kept_is_confirmed_though_what_follows_it_was_dropped(tmp_path, loop):
    """Its future does not wait for the next message, which may never come."""
    with publisher(tmp_path) as full:
        full.publish(b"kept")
        kept_to = full.flush("written").position
    sent_to(tmp_path, kept_to.file + 1)
    with publisher(tmp_path) as full:  # in files of its own
        fill(full, 30)
        receipts = Receipts(full, ConfirmationsFile(directory_in(tmp_path)), loop)
        kept = receipts.future(Level.MERGED, 0)
        lost = receipts.future(Level.MERGED, 1)
        receipts.future(Level.WRITTEN, 30).result(PATIENCE_S)
        fill(full, 600)
        assert 1 in gone(full.dropped())
        confirm(tmp_path, kept_to)
        assert kept.result(PATIENCE_S).position == kept_to
        assert isinstance(lost.exception(PATIENCE_S), MessagesDropped)
        receipts.close()


def test_confirmations_that_cannot_be_read_for_a_while_delay_futures_and_no_more(
    tmp_path, caplog, loop
):
    """Each attempt took every future once more, and wrote a line: ten a second, for hours."""
    looks, completed, file = [], [], ConfirmationsFile(directory_in(tmp_path))

    def read():
        looks.append(1)
        if len(looks) < 5:
            raise OSError(24, "Too many open files")
        return file.read()

    with publisher(tmp_path) as full:
        receipts = Receipts(full, SimpleNamespace(read=read), loop)
        full.publish(b"x")
        kept = receipts.future(Level.MERGED, 0)
        kept.add_done_callback(completed.append)
        assert eventually(lambda: len(looks) > 5, PATIENCE_S)
        assert not completed
        confirm(tmp_path, full.flush("written").position)
        assert kept.result(PATIENCE_S).level is Level.MERGED
        receipts.close()
    assert caplog.text.count("session jfk waits: too many open files") == 1


def test_a_session_that_is_put_back_from_a_backup_drops_nothing_of_it(tmp_path):
    """Its mark is older than what a pusher has sent since."""
    directory = directory_in(tmp_path)
    with publisher(tmp_path) as full:
        fill(full, 100)
    shutil.copytree(directory, tmp_path / "backup")
    sent_to(tmp_path, Position.of(1, 0, 0))
    shutil.rmtree(directory)
    shutil.copytree(tmp_path / "backup", directory)
    with publisher(tmp_path) as again:
        fill(again, 1000)
        assert gone(again.dropped())[0] == 100
    with publisher(tmp_path) as later:
        assert gone(later.dropped())[0] == 100


def test_a_session_that_is_opened_again_drops_what_it_had(tmp_path):
    """Also if its directory has moved: that is no backup."""
    with publisher(tmp_path / "a") as full:
        fill(full, 100)
    os.rename(tmp_path / "a", tmp_path / "b")
    with publisher(tmp_path / "b") as again:
        fill(again, 1000)
        assert gone(again.dropped())[0] == 0

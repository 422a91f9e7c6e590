"""A full session drops its oldest messages: what goes, who hears of it, and what is kept."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress

import pytest
from archive_cluster import STREAM, ArchiveCluster, held_bytes

import rt
from replicator.push.progress import Release
from replicator.push.releaser import Releaser
from replicator.push.session_book import SessionBook
from replicator.source.cursor_file import CursorFile
from replicator.wire.messages import Ack
from rt.errors import NAME_TAKEN, FlushTimeout, MessagesDropped, Misuse, Refused
from rt.format.dropped_notice import NOTICE_BYTES
from rt.format.manifest import SESSION
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.files.identity import new_identity
from rt.log.files.lock import take_lock
from rt.log.notify.confirmations import Confirmations, ConfirmationsFile
from rt.log.notify.shipping import ShippingNote
from rt.log.write.appender import Appender
from rt.log.write.dropping import Dropping, notice_of
from rt.log.write.sending import sending
from rt.log.write.writer import SessionWriter
from rt.position import START, Position
from sequencer.ledger.ledger import Ledger
from sequencer.planning.planner import Planner
from sequencer.planning.session_log import SessionLogs
from tests.commands import Process
from tests.faulty import FaultyDisk

KIB = 1 << 10
LIMIT = 512 * KIB
PATIENCE_S = 60
DROPS = rt.DiskLimit(LIMIT, on_full="drop_oldest")


def publisher(root, session="jfk", limit=DROPS, **options):
    """Return a publisher without a pusher; one may run beside it."""
    return rt.Publisher(root, stream=STREAM, session=session, disk_limit=limit, **options)


def fill(full, messages, size=KIB):
    """Publish numbered messages."""
    for _ in range(messages):
        full.publish(full.next_sequence.to_bytes(4, "big").ljust(size))


def eventually(check):
    """Wait until a condition holds."""
    end_s = time.monotonic() + PATIENCE_S
    while not check() and time.monotonic() < end_s:
        time.sleep(0.02)
    return check()


def read(directory, **options):
    """Read a log to its end: sequence numbers, and the gaps of either kind."""
    events = []
    root, stream = os.path.split(os.path.dirname(str(directory)))
    session = os.path.basename(directory)
    with rt.Subscriber(
        root, stream=stream, session=None if session == "out" else session, start=Position(0),
        follow=False, on_gap="notify", on_event=events.append, **options,
    ) as reader:  # fmt: skip
        found = [int.from_bytes(each.payload[:4], "big") for each in reader]
    return found, [each for each in events if isinstance(each, rt.Dropped | rt.Gap)]


def gone(spans):
    """The numbers that spans cover."""
    return [number for each in spans for number in range(each.first, each.next)]


def mark(directory, bound=None):
    """The first file that no pusher has begun to send; or set it."""
    with sending(str(directory)) as known:
        if bound is not None:
            known.write(bound, known.limit)
        return known.bound


def test_a_local_queue_keeps_its_newest_messages(tmp_path):
    """Its readers meet a typed gap, and every message is either there or named as dropped."""
    directory = tmp_path / STREAM / "jfk"
    with publisher(tmp_path) as full:
        fill(full, 3000)
        waiting = DROPS.frame_bytes_max  # a frame that has begun is not asked about again
        assert held_bytes(directory) <= LIMIT + waiting + 2 * NOTICE_BYTES + 512
        full.flush("synced")
        [dropped] = full.dropped()
    found, [gap] = read(directory)
    assert gone([dropped]) + found == list(range(3000))
    assert len(found) > 350, "most of the limit is used"
    assert gap.reason == "dropped"
    with publisher(tmp_path) as again:
        assert again.dropped() == [dropped]
        assert again.next_sequence == 3000


def test_the_limit_has_room_for_some_files(tmp_path):
    """Files go whole: with one alone, everything would."""
    with pytest.raises(Misuse, match="use 524288 or more to drop the oldest messages"):
        rt.DiskLimit(LIMIT - 1, on_full="drop_oldest")
    with pytest.raises(Misuse, match="use error, block or drop_oldest"):
        rt.DiskLimit(LIMIT, on_full="drop_newest")


def test_a_group_drops_nothing(tmp_path):
    """What one session dropped might be left out of another as a repeat."""
    with pytest.raises(Misuse, match="of group 'g', whose messages cannot be dropped"):
        rt.Publisher(tmp_path, stream=STREAM, session="jfk", group="g", disk_limit=DROPS)
    assert not (tmp_path / STREAM).exists()


@pytest.mark.parametrize("nodes", [1, 3])
def test_every_reader_of_every_node_learns_once_what_was_dropped(tmp_path, nodes):
    """Where the messages were; their futures fail, and nothing else is lost."""
    with ArchiveCluster(tmp_path / "cluster", nodes) as cluster:
        clients = os.path.join(cluster.root, "clients.toml")
        for place in cluster.places:
            cluster.stop(place.name)
        with rt.connect(clients, root=tmp_path / "client") as client:
            full = client.publisher("jfk", disk_limit=DROPS)
            futures = [full.publish_future(number.to_bytes(4, "big")) for number in range(3)]
            payload = bytes(KIB - 4)
            for number in range(3, 1500):
                future = full.publish_future(number.to_bytes(4, "big") + payload)
                futures.append(future)
            for place in cluster.places:
                cluster.start(place.name)
            with pytest.raises(MessagesDropped, match="session jfk dropped") as told:
                full.flush("merged", PATIENCE_S)
            full.flush("merged", PATIENCE_S)
            assert list(told.value.dropped) == full.dropped()
            lost = gone(full.dropped())
            for number, each in enumerate(futures):
                if number in lost:
                    assert isinstance(each.exception(PATIENCE_S), MessagesDropped)
                else:
                    assert each.result(PATIENCE_S).level is rt.Level.MERGED
        end = max(cluster.ledger(place.name).end for place in cluster.places)
        for place in cluster.places:
            assert eventually(lambda at=place: cluster.ledger(at.name).end >= end)
            found, events = read(cluster.out(place.name))
            assert sorted(found + lost) == list(range(1500))
            assert found == sorted(found)
            assert [(each.session, each.first, each.next) for each in events] == [
                (each.session, each.first, each.next) for each in full.dropped()
            ]


def test_what_one_node_has_is_kept_and_merged_by_all(tmp_path):
    """No majority: the pusher sends one node half of what the limit allows, and the rest goes."""
    with ArchiveCluster(tmp_path / "cluster", 3) as cluster:
        clients = os.path.join(cluster.root, "clients.toml")
        for name in ("n2", "n3"):
            cluster.stop(name)
        directory = tmp_path / "client" / STREAM / "jfk"
        with rt.connect(clients, root=tmp_path / "client") as client:
            full = client.publisher("jfk", disk_limit=DROPS)
            fill(full, 200)
            full.flush("received", PATIENCE_S)
            kept_to = mark(directory)  # what is dropped may be passed over, and the next file sent
            assert kept_to > 0
            fill(full, 2000)
            assert full.dropped()
            assert all(each.begin >= kept_to for each in full.dropped())
            for name in ("n2", "n3"):
                cluster.start(name)
            with pytest.raises(MessagesDropped):
                full.flush("merged", PATIENCE_S)
            fill(full, 100)
            for _ in range(5):  # it raises as soon as it knows of a loss, and waits no more
                with suppress(MessagesDropped):
                    full.flush("merged", PATIENCE_S)
                    break
            lost = gone(full.dropped())
        assert 0 not in lost
        end = max(cluster.ledger(place.name).end for place in cluster.places)
        for place in cluster.places:
            assert eventually(lambda at=place: cluster.ledger(at.name).end >= end)
            found, events = read(cluster.out(place.name))
            assert sorted(found + lost) == list(range(2300))
            assert gone(events) == lost


FULL = 3  # all that is left may have been sent to a node that is down
FLOOD = """
import sys, rt
config, root = sys.argv[1:]
limit = rt.DiskLimit(1 << 19, on_full="drop_oldest")
client = rt.connect(config, root=root)
publisher = client.publisher("jfk", disk_limit=limit)
while True:
    try:
        publisher.publish_many([bytes(1000)] * 20)
    except rt.SessionFull:
        sys.exit(FULL)
    print(publisher.next_sequence, flush=True)
""".replace("FULL", str(FULL))


@pytest.mark.faults  # how much is dropped, and where a kill comes, depends on the machine
@pytest.mark.process
def test_publishers_that_are_killed_while_they_drop_lose_and_double_nothing_else(tmp_path):
    """Every number is either merged or named as dropped, once, wherever a kill came."""
    with ArchiveCluster(tmp_path / "cluster") as cluster:
        config = os.path.join(cluster.root, "clients.toml")
        begun = 0
        for turn in range(5):
            if turn % 2:
                cluster.stop("n1")
            command = [sys.executable, "-c", FLOOD, config, str(tmp_path / "client")]
            with Process(command, stdout=subprocess.PIPE) as flood:
                while begun % 1500 < 1400 - 250 * turn and (line := flood.stdout.readline()):
                    begun = int(line)
                flood.kill()
            assert flood.returncode in (-signal.SIGKILL, FULL)
            begun += 1500 - begun % 1500
            if turn % 2:
                cluster.start("n1")
        with rt.connect(config, root=tmp_path / "client") as client:
            last = client.publisher("jfk")
            count = last.next_sequence + 1
            last.publish(b"last", confirm="merged", timeout_s=PATIENCE_S)
            lost = gone(last.dropped())
        events = []
        with rt.Subscriber(
            os.path.dirname(os.path.dirname(cluster.out("n1"))), stream=STREAM, start=Position(0),
            follow=False, on_event=events.append,
        ) as reader:  # fmt: skip
            found = [message.sequence for message in reader]
        assert sorted(found + lost) == list(range(count))
        assert gone(each for each in events if isinstance(each, rt.Dropped)) == lost
        assert lost


def dead_before_the_line(tmp_path):
    """A session whose publisher died after a notice, and before the line of the file it covers.

    Returns its directory, and how many messages were published.
    """
    disk, calls = FaultyDisk(), []

    def dies(call):
        calls.append(call)
        if call == "append" and "overwrite" in calls:  # the notice was replaced, and synced
            raise KeyboardInterrupt

    full = publisher(tmp_path, disk=disk)
    fill(full, 300)
    disk.step = dies
    with pytest.raises(KeyboardInterrupt):
        fill(full, 300)
    disk.step = lambda _call: None
    taken = full.next_sequence
    full.close()
    assert full.dropped() == []
    return tmp_path / STREAM / "jfk", taken


def test_a_process_that_dies_before_the_line_has_dropped_the_file(tmp_path):
    """Its notice says so already; the next publisher, and a pusher, go by that."""
    directory, taken = dead_before_the_line(tmp_path)
    with publisher(tmp_path) as again:
        assert again.dropped()
        fill(again, 1)
        dropped = again.dropped()
    found, _ = read(directory)
    assert gone(dropped) + found == list(range(taken + 1))


def test_a_notice_is_durable_before_the_line_of_the_file_it_covers(tmp_path):
    """After a power cut between the two, neither the file nor any word of it would be left."""
    calls = []
    with rt.Publisher(
        tmp_path, stream=STREAM, session="jfk", disk_limit=DROPS, disk=FaultyDisk(calls.append)
    ) as full:
        while not full.dropped():
            fill(full, 50)
    written = calls.index("overwrite")
    assert "sync" in calls[written : calls.index("append", written)]


def test_every_connection_passes_over_a_file_whose_line_is_missing(tmp_path):
    """Also the second one, when the first has begun to send what follows: copies never differ."""
    directory, _ = dead_before_the_line(tmp_path)
    firsts = []
    for _ in range(2):
        with closing(LogDirectory(str(directory))) as log:
            log.refresh()
            firsts.append(CursorFile(log, is_own=True).first())
            assert firsts[-1] > Position(0), "the oldest was dropped"
    assert firsts[0] == firsts[1]


def test_a_file_whose_line_is_missing_is_dropped_once_the_next_was_sent(tmp_path):
    """Otherwise it would be archived as merged."""
    directory, _ = dead_before_the_line(tmp_path)
    with closing(LogDirectory(str(directory))) as log:
        log.refresh()
        CursorFile(log, is_own=True).first()
    with publisher(tmp_path) as again:
        assert again.dropped()


def test_a_file_whose_line_is_missing_is_named_by_any_publisher(tmp_path):
    """Also by one that has no limit: its list of what was dropped is the session's."""
    dead_before_the_line(tmp_path)
    with publisher(tmp_path, limit=None) as again:
        assert gone(again.dropped())


def test_a_file_whose_line_is_missing_is_never_archived_as_merged(tmp_path):
    """A pusher archives for a publisher that has ended, and the nodes confirm what follows."""
    directory, _ = dead_before_the_line(tmp_path)
    released = Confirmations(released=Position.of(9, 0, 0))
    with closing(ConfirmationsFile(str(directory))) as confirmed:
        confirmed.write(released)
    end, book = released.released, SessionBook(str(tmp_path), STREAM, ["*"])
    book.acked("jfk", "n1", Ack(0, end, end, end, end, end), "")
    Releaser(book, Release.MERGED).look_at("jfk", last=True)
    with publisher(tmp_path) as again:
        assert again.dropped()


def test_a_notice_that_no_message_followed_is_repeated_by_the_next_run(tmp_path):
    """Nodes pass over frames that add nothing."""
    directory = tmp_path / STREAM / "jfk"
    note = ShippingNote(str(directory))
    with publisher(tmp_path) as full:
        fill(full, 60)
        note.write("another has the name", NAME_TAKEN)
        with pytest.raises(Refused):
            full.flush("merged")
        with pytest.raises(Refused):  # once all was dropped for it, and a file begun
            full.publish_many([bytes(LIMIT)])
        assert full.dropped()
    note.write("")
    with closing(LogDirectory(str(directory))) as log:
        log.refresh()
        last = log.manifest.order[-1]
        assert notice_of(log, last).next == 60
        with publisher(tmp_path) as again:
            fill(again, 1)
        log.refresh()
        assert notice_of(log, log.manifest.order[-1]).next == 60


def test_what_a_pusher_may_have_begun_to_send_is_kept(tmp_path):
    """Some node may have a byte of it; so the session is full rather than torn."""
    with publisher(tmp_path) as full:
        fill(full, 300)
        mark(tmp_path / STREAM / "jfk", Position.of(1, 0, 0))
        with pytest.raises(rt.SessionFull):
            fill(full, 600)
        assert full.dropped() == []


def test_a_late_flush_names_the_level_that_all_has_reached_that_was_kept(ram_path):
    """Messages dropped during the wait reach no level, and need not be waited for.

    The drop has to be done before the wait is over, so no sync may take long.
    """
    directory, syncing, late = str(ram_path / STREAM / "jfk"), threading.Event(), []
    with publisher(ram_path) as kept:
        fill(kept, 10)
        end = kept.flush("written").position
    disk = FaultyDisk(lambda call: syncing.set() if call == "sync" else None)

    def flush():
        try:
            full.flush("merged", 4.0)
        except FlushTimeout as error:
            late.append(error)

    with (
        publisher(ram_path, disk=disk) as full,
        closing(ConfirmationsFile(directory)) as confirmed,
    ):
        mark(directory, end.file.next_file())
        confirmed.write(Confirmations(received=end, replicated=end))
        fill(full, 1)
        syncing.clear()
        flushing = threading.Thread(target=flush)
        flushing.start()
        assert syncing.wait(PATIENCE_S)
        fill(full, 1000)  # after the flush has noted where its messages end
        flushing.join()
        assert "only replicated" in str(late[0])
        assert full.dropped()[0].first == 10


def test_a_drop_that_meets_a_full_disk_is_told_once(tmp_path):
    """The publisher was told that twice as many messages were dropped."""
    disk = FaultyDisk()
    with closing(SessionWriter(str(tmp_path), STREAM, "jfk", disk=disk, limit=DROPS)) as writer:
        for _ in range(40):
            writer.write([1], [bytes(7 * KIB)], None)
        disk.room = 0
        with pytest.raises(OSError, match="No space left"):
            writer.drop_oldest()
        disk.room = None
        assert writer.drop_oldest()
        (told,) = writer.dropping.take_untold()
    assert (told,) == writer.dropping.spans


def test_what_was_there_before_is_kept(tmp_path):
    """A pusher of it did not note what it sends."""
    with publisher(tmp_path, limit=None) as first:
        fill(first, 300)
    with publisher(tmp_path) as full:
        fill(full, 1000)
        [dropped] = full.dropped()
    assert dropped.first == 300


def test_a_notice_goes_with_the_messages_after_it_however_small_the_share(tmp_path):
    """Alone it would add no message, and be passed over; so it waits for them."""
    with publisher(tmp_path, "a") as full:
        fill(full, 100)
        end = full.flush("synced").position
    with closing(LogDirectory(str(tmp_path / STREAM / "a"))) as log:
        log.refresh()
        assert notice_of(log, end.file) is not None
    logs = SessionLogs(OsDisk(), str(tmp_path / STREAM))
    first = slice_of(logs, end)
    assert first.length > NOTICE_BYTES
    assert first.messages > 0
    logs.close()
    path, identity = (
        str(tmp_path / STREAM / "alone"),
        new_identity(SESSION, STREAM, "alone", created_ns=0),
    )
    with closing(Appender(OsDisk(), path, identity)) as alone:
        alone.recover()
        os.close(take_lock(path, "in use"))  # as its writer would
        Dropping(alone, LIMIT).begin(START, 0)
        logs = SessionLogs(OsDisk(), str(tmp_path / STREAM))
        assert slice_of(logs, Position(NOTICE_BYTES), "alone") is None
        alone.roll(0)
    assert slice_of(logs, Position(NOTICE_BYTES), "alone").messages == 0, "it has ended"
    logs.close()


def slice_of(logs, durable, session="a"):
    """Return what a leader would merge first, given a share of the bytes."""
    ledger = Ledger(file_bytes_max=2)
    merge = Planner(logs).plan(ledger, {session: durable}, 1)
    return merge.slices[0] if merge else None
